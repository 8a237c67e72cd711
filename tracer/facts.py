# SPDX-License-Identifier: Apache-2.0
"""What is known about the machine before anything is attached to it, and where to look for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

State = Literal["ok", "degraded", "missing"]


@dataclass(frozen=True)
class Fact:
    """What works here, or not, and what that costs.

    subject: what it is about, in a word or two. text: the rest of the sentence. status: the exit status that a run
    has because of it (docs/exit-status.md): 0 = a default run loses nothing, 1 = it loses something, more = it cannot
    start.
    """

    subject: str
    state: State
    text: str
    status: int = 0


@dataclass(frozen=True)
class Machine:
    """The files of a machine. root: the directory that has proc and sys in it."""

    root: Path = Path("/")

    def read(self, path: str) -> str | None:
        """A file's text; None when it is not there. Raises PermissionError."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except PermissionError:
            raise
        except OSError:
            return None

    def read_quietly(self, path: str) -> str:
        """A file's text; "" when there is none, or none for us."""
        try:
            return self.read(path) or ""
        except PermissionError:
            return ""

    def has(self, path: str) -> bool:
        return (self.root / path).exists()

    def modules(self) -> set[str]:
        """Names of the loaded modules; what is built into the kernel is not among them."""
        return {line.split()[0] for line in self.read_quietly("proc/modules").splitlines()}
