# SPDX-License-Identifier: Apache-2.0
"""Files of the machine that checks read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
