# SPDX-License-Identifier: Apache-2.0
"""Kernel symbols: existing functions, their modules, and the function that contains an address.

Source: /proc/kallsyms. Its addresses are 0 for readers without CAP_SYSLOG; names are still correct then. It has the beginning
of each function, not the end: an address in a module that was loaded later would be assigned to the preceding function. So
the addresses are read again after the modules have changed.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from pathlib import Path

VARIABLES = frozenset({"nf_tables_net_id", "page_offset_base", "vmemmap_base"})
"""Variables that `bpf/` reads by address: ADDRESS_name in C."""


MAX_FUNCTION_BYTES = 1 << 16
"""Upper bound of the length of a kernel function, bytes."""
CHECK_SECONDS = 1.0
"""Shortest time between two checks for changed modules, s; a check is made when an address in a module is looked up."""


class Symbols:
    """Functions of the running kernel.

    Attributes:
        loaded: Modules with functions, and "vmlinux".
        variables: Addresses of the VARIABLES that exist, by name.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._read_lines: Callable[[], Iterable[str]] | None = None
        self._fingerprint: Callable[[], str] = str
        self._last_fingerprint, self._checked_at = "", 0.0
        self._modules: dict[str, str] = {}
        self.variables: dict[str, int] = {}
        self._more_modules: dict[str, tuple[str, ...]] = {}
        addressed: list[tuple[int, str, bool]] = []
        for line in lines:
            address, kind, name, *module = line.split()
            if name in VARIABLES and kind in "bBdDrR" and int(address, 16):
                self.variables[name] = int(address, 16)
            if kind not in "tTwW":
                continue
            home = module[0].strip("[]") if module else "vmlinux"
            if self._modules.setdefault(name, home) != home:
                self._more_modules[name] = (*self._more_modules.get(name, ()), home)
            addressed.append((int(address, 16), name, bool(module)))
        self.loaded = frozenset(self._modules.values())
        addressed.sort()
        self._addresses = [a for a, _, _ in addressed]
        self._names = [n for _, n, _ in addressed]
        self._in_module = [m for _, _, m in addressed]

    @classmethod
    def running(cls, path: Path = Path("/proc/kallsyms"), modules: Path = Path("/proc/modules")) -> Symbols:
        """The symbols of this machine. modules: file whose content changes when modules are loaded or removed."""

        def lines() -> list[str]:
            return path.read_text(encoding="utf-8", errors="replace").splitlines()

        def fingerprint() -> str:
            # Name and address; the other columns are counters.
            rows = [line.split() for line in modules.read_text().splitlines()] if modules.exists() else []
            return " ".join(f"{row[0]}@{row[5]}" for row in rows)

        seen = fingerprint()
        symbols = cls(lines())
        symbols._read_lines, symbols._fingerprint, symbols._last_fingerprint = lines, fingerprint, seen
        return symbols

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._read_lines and now - self._checked_at > CHECK_SECONDS:
            self._checked_at = now
            seen = self._fingerprint()
            if seen != self._last_fingerprint:
                self._last_fingerprint = seen
                # Only the addresses: the probes were chosen at the start.
                again = Symbols(self._read_lines())
                self._addresses, self._names, self._in_module = again._addresses, again._names, again._in_module

    def module_of(self, name: str) -> str | None:
        """The module of a function, "vmlinux" for the kernel itself; None = no such function."""
        return self._modules.get(name)

    def modules_of(self, name: str) -> tuple[str, ...]:
        """All modules with a function of that name; () = none."""
        first = self._modules.get(name)
        return (first, *self._more_modules.get(name, ())) if first else ()

    def containing(self, address: int) -> str:
        """The function that contains an address; "" = not known.

        Compiler suffixes (`.part.0`, `.constprop.0`, `.cold`) are removed.
        """
        at = bisect_right(self._addresses, address) - 1
        if at >= 0 and (self._in_module[at] or address - self._addresses[at] >= MAX_FUNCTION_BYTES):
            self._refresh()
            at = bisect_right(self._addresses, address) - 1
        if at < 0 or not self._addresses[at]:
            return ""
        return self._names[at].split(".")[0]
