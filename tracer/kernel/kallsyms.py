# SPDX-License-Identifier: Apache-2.0
"""Kernel symbols: existing functions, their modules, and the function that contains an address.

Source: /proc/kallsyms. Its addresses are 0 for readers without CAP_SYSLOG; names are still correct then. It has the beginning
of each function, not the end: an address in a module that was loaded later would be assigned to the preceding function. So
the addresses are read again after the modules have changed.

The file has 200,000 lines, and a start looks up a few hundred names. So the lines stay bytes, numpy finds where they begin, and
only lines that are asked for are decoded. What was asked is kept for later starts (symbol_cache.py), which do not read it then.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tracer.kernel.cache_directory import BadEntry
from tracer.kernel.symbol_cache import SymbolAnswers, SymbolCache

VARIABLES = frozenset({"nf_tables_net_id", "page_offset_base", "vmemmap_base", "bpf_redirect_info", "__per_cpu_offset"})
"""Variables that `bpf/` reads by address: ADDRESS_name in C. That of bpf_redirect_info is an offset in each CPU's area."""


MAX_FUNCTION_BYTES = 1 << 16
"""Upper bound of the length of a kernel function, bytes."""
CHECK_SECONDS = 1.0
"""Shortest time between two checks for changed modules, s; a check is made when an address in a module is looked up."""

_KIND, _NAME = 17, 19
"""Offsets of a symbol's kind and name in its line: 16 digits, a space, the kind, a space, the name."""
_FUNCTION_KINDS, _VARIABLE_KINDS = b"tTwW", b"bBdDrRA"
_PREFIX_BYTES = 8
"""Length of the part of a name by which lines are sorted, bytes."""
_TAB, _NEWLINE = 9, 10


class SymbolLines:
    """Lines of /proc/kallsyms. data: lines that end with a newline, each with an address of 16 digits."""

    def __init__(self, data: bytes) -> None:
        self._data = data + bytes(_PREFIX_BYTES)
        self._bytes = np.frombuffer(self._data, np.uint8)
        ends = np.flatnonzero(self._bytes == _NEWLINE)
        starts = np.concatenate((np.zeros(min(1, len(ends)), ends.dtype), ends[:-1] + 1))
        self._starts = starts[np.isin(self._bytes[starts + _KIND], np.frombuffer(_FUNCTION_KINDS, np.uint8))]

    def _parts(self, at: int, length: int) -> npt.NDArray[np.uint8]:
        """A copy of the bytes from `at` on of each function's line, as an array of shape (functions, length)."""
        count = max(0, len(self._bytes) - length + 1)
        windows = np.lib.stride_tricks.as_strided(self._bytes, (count, length), (1, 1), writeable=False)
        return windows[self._starts + at]

    @cached_property
    def _by_prefix(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.intp]]:
        """The sorted first bytes of all functions' names, and where their lines begin; equal ones in the order of the lines."""
        first = self._parts(_NAME, _PREFIX_BYTES)
        first[np.logical_or.accumulate((first == _TAB) | (first == _NEWLINE), axis=1)] = 0
        prefixes = first.view(np.uint64)[:, 0] if len(first) else np.zeros(0, np.uint64)
        order = np.argsort(prefixes, kind="stable")
        return prefixes[order], self._starts[order]

    @cached_property
    def _by_address(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.intp]]:
        """The sorted addresses of all functions, and where their lines begin."""
        digits = self._parts(0, 16)
        values = np.where(digits >= ord("a"), digits - (ord("a") - 10), digits - ord("0"))
        octets = np.ascontiguousarray(values[:, ::2] << 4 | values[:, 1::2])
        addresses = octets.view(">u8")[:, 0].astype(np.uint64) if len(octets) else np.zeros(0, np.uint64)
        order = np.argsort(addresses, kind="stable")
        return addresses[order], self._starts[order]

    def modules(self) -> frozenset[str]:
        """All modules with symbols, and "vmlinux"."""
        return frozenset(m.decode(errors="replace") for m in re.findall(rb"\t\[([^\]\n]+)\]", self._data)) | {"vmlinux"}

    def homes(self, name: str) -> tuple[str, ...]:
        """The modules with a function of that name, each once, in the order of the lines; () = none."""
        text = name.encode()
        prefixes, starts = self._by_prefix
        wanted = np.frombuffer(text[:_PREFIX_BYTES].ljust(_PREFIX_BYTES, b"\0"), np.uint64)
        low, high = np.searchsorted(prefixes, wanted, "left")[0], np.searchsorted(prefixes, wanted, "right")[0]
        found = (self._module(int(start), text) for start in starts[low:high])
        return tuple(dict.fromkeys(module for module in found if module))

    def _module(self, start: int, name: bytes) -> str:
        """The module of the line's symbol if it has this name, else ""."""
        after = start + _NAME + len(name)
        if self._data[start + _NAME : after] != name or self._data[after] not in (_TAB, _NEWLINE):
            return ""
        if self._data[after] == _NEWLINE:
            return "vmlinux"
        return self._data[after : self._data.index(b"\n", after)].strip().strip(b"[]").decode(errors="replace")

    def variable(self, name: str) -> int:
        """The address of a variable; 0 = there is none, or it is hidden."""
        text, at = b" " + name.encode(), -1
        while (at := self._data.find(text, at + 1)) >= 0:
            is_name = self._data[at + len(text)] in (_TAB, _NEWLINE)
            if is_name and self._data[at - 1] in _VARIABLE_KINDS and (address := int(self._data[at - 18 : at - 2], 16)):
                return address
        return 0

    def function_before(self, address: int) -> tuple[int, str, bool] | None:
        """The last function that begins at or before an address: its address, its name, and whether it is in a module."""
        addresses, starts = self._by_address
        at = int(np.searchsorted(addresses, np.uint64(address), "right")) - 1
        if at < 0:
            return None
        first = int(np.searchsorted(addresses, addresses[at], "left"))
        return (int(addresses[at]), *max(self._function(int(start)) for start in starts[first : at + 1]))

    def _function(self, start: int) -> tuple[str, bool]:
        """The name of a line's function, and whether it is in a module."""
        name, tab, _ = self._data[start + _NAME : self._data.index(b"\n", start)].decode(errors="replace").partition("\t")
        return name, bool(tab)


class Symbols:
    """Functions of the running kernel.

    Attributes:
        rejected: Why answers of an earlier start are not used, or cannot be kept, as a clause; "" = nothing is wrong.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        parts = (line.rstrip().partition(" ") for line in lines)
        self._set(SymbolLines("".join(f"{address:0>16} {rest}\n" for address, _, rest in parts).encode()))

    def _set(self, lines: SymbolLines | None, kept: SymbolAnswers | None = None) -> None:
        self._read: Callable[[], bytes] | None = None
        self._lines = self._by_address = lines
        self._fingerprint: Callable[[], str] = str
        self._last_fingerprint, self._checked_at = "", 0.0
        self._cache, self._key = SymbolCache(None), ""
        self._kept, self._answers = kept, dict(kept.homes) if kept else {}
        self.rejected = ""

    @classmethod
    def running(
        cls,
        path: Path = Path("/proc/kallsyms"),
        modules: Path = Path("/proc/modules"),
        cache: SymbolCache | None = None,
    ) -> Symbols:
        """The symbols of this machine.

        Args:
            path: The file with the symbols; it is not read where earlier answers suffice.
            modules: File whose content changes when modules are loaded or removed.
            cache: Answers of earlier starts; None = none.
        """

        def fingerprint() -> str:
            # Name and address; the other columns are counters.
            rows = [line.split() for line in modules.read_text().splitlines()] if modules.exists() else []
            return " ".join(f"{row[0]}@{row[5]}" for row in rows)

        seen, kept, rejected = fingerprint(), None, ""
        cache = cache or SymbolCache(None)
        try:
            kept = cache.read(seen)
        except BadEntry as e:
            rejected = str(e)
        symbols = cls.__new__(cls)
        symbols._set(None if kept else SymbolLines(path.read_bytes()), kept)
        symbols._read, symbols._fingerprint, symbols._last_fingerprint = path.read_bytes, fingerprint, seen
        symbols._cache, symbols._key, symbols.rejected = cache, seen, rejected
        return symbols

    def keep(self) -> None:
        """Keeps what was asked for later starts, if these modules are still the loaded ones, and anything is new."""
        is_new = self._kept is None or self._answers.keys() > self._kept.homes.keys()
        if not is_new or self._fingerprint() != self._key:
            return
        answers = SymbolAnswers(dict(self._answers), self.variables, self.loaded)
        try:
            self._cache.write(self._key, answers)
        except BadEntry as e:
            self.rejected = self.rejected or str(e)
        self._kept = answers

    def free(self) -> None:
        """Frees the lines, 10 MB. They are read again when something is asked."""
        if self._read:
            self._lines = self._by_address = None

    def _present(self) -> SymbolLines:
        """The lines, in which names are looked up."""
        if self._lines is None:
            assert self._read
            self._lines = SymbolLines(self._read())
        return self._lines

    def _addressed(self) -> SymbolLines:
        """The lines in which addresses are looked up."""
        if self._by_address is None:
            assert self._read
            self._last_fingerprint = self._fingerprint()
            self._by_address = SymbolLines(self._read())
        return self._by_address

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._read and now - self._checked_at > CHECK_SECONDS:
            self._checked_at = now
            seen = self._fingerprint()
            if seen != self._last_fingerprint:
                self._last_fingerprint = seen
                # Only the addresses: the probes were chosen at the start.
                self._by_address = SymbolLines(self._read())

    @cached_property
    def variables(self) -> dict[str, int]:
        if self._kept:
            return self._kept.variables
        return {name: at for name in sorted(VARIABLES) if (at := self._present().variable(name))}

    @cached_property
    def loaded(self) -> frozenset[str]:
        """Modules with symbols, and "vmlinux"."""
        return self._kept.loaded if self._kept else self._present().modules()

    def module_of(self, name: str) -> str | None:
        """The module of a function, "vmlinux" for the kernel itself; None = no such function."""
        return next(iter(self.modules_of(name)), None)

    def modules_of(self, name: str) -> tuple[str, ...]:
        """All modules with a function of that name; () = none."""
        found = self._answers.get(name)
        if found is None:
            found = self._answers[name] = self._present().homes(name)
        return found

    def containing(self, address: int) -> str:
        """The function that contains an address; "" = not known.

        Compiler suffixes (`.part.0`, `.constprop.0`, `.cold`) are removed.
        """
        found = self._addressed().function_before(address)
        if found and (found[2] or address - found[0] >= MAX_FUNCTION_BYTES):
            self._refresh()
            found = self._addressed().function_before(address)
        return found[1].split(".")[0] if found and found[0] else ""
