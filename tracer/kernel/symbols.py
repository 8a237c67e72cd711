"""Kernel symbols: which functions exist, in which module, and which function an address lies in.

Source: /proc/kallsyms. Addresses in it are 0 for readers without CAP_SYSLOG; names are still true then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path

VARIABLES = frozenset({"nf_tables_net_id"})
"""The variables that `bpf/` reads by address: ADDRESS_name in C."""


class Symbols:
    """Functions of the running kernel. loaded: modules that have any. variables: addresses of those wanted that exist."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._modules: dict[str, str] = {}
        self.variables: dict[str, int] = {}
        addressed: list[tuple[int, str]] = []
        for line in lines:
            address, kind, name, *module = line.split()
            if name in VARIABLES and kind in "bBdDrR" and int(address, 16):
                self.variables[name] = int(address, 16)
            if kind not in "tTwW":
                continue
            self._modules.setdefault(name, module[0].strip("[]") if module else "vmlinux")
            addressed.append((int(address, 16), name))
        self.loaded = frozenset(self._modules.values())
        addressed.sort()
        self._addresses = [a for a, _ in addressed]
        self._names = [n for _, n in addressed]

    @classmethod
    def running(cls, path: Path = Path("/proc/kallsyms")) -> Symbols:
        with path.open(encoding="utf-8", errors="replace") as lines:
            return cls(lines)

    def module_of(self, name: str) -> str | None:
        """ "vmlinux", a module's name, or None when there is no such function."""
        return self._modules.get(name)

    def containing(self, address: int) -> str:
        """The function that an address lies in; "" when not known.

        Compiler suffixes (`.part.0`, `.constprop.0`, `.cold`) are cut: they say how, not what.
        """
        at = bisect_right(self._addresses, address) - 1
        if at < 0 or not self._addresses[at]:
            return ""
        return self._names[at].split(".")[0]
