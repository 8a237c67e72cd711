# SPDX-License-Identifier: Apache-2.0
"""Files of the machine, for checks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """The files of a machine. root: the directory with proc and sys."""

    root: Path = Path("/")

    def read(self, path: str) -> str | None:
        """The text of a file; None = it cannot be read for another reason than permissions.

        Raises:
            PermissionError: This process may not read it.
        """
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except PermissionError:
            raise
        except OSError:
            return None

    def read_quietly(self, path: str) -> str:
        """The text of a file; "" = it does not exist or cannot be read."""
        try:
            return self.read(path) or ""
        except PermissionError:
            return ""

    def has(self, path: str) -> bool:
        return (self.root / path).exists()

    def modules(self) -> set[str]:
        """Names of the loaded modules, without those built into the kernel."""
        return {line.split()[0] for line in self.read_quietly("proc/modules").splitlines()}
