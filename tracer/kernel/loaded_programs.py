# SPDX-License-Identifier: Apache-2.0
"""Loads compiled programs into the kernel, attaches every planned row, and removes everything at the end.

Everything that depends on this start is filled in here: descriptors of maps, addresses of the kernel, BTF numbers of
functions. A row that cannot be attached only loses the data of that row.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from tracer.errors import CompileFailed, NoProbe
from tracer.kernel import bpf_syscall, kernel_memory
from tracer.kernel.attach_plan import PlannedProbe, UnavailableProbe
from tracer.kernel.bpf_syscall import BpfMap, MissCounters, ProgramTarget, Refused
from tracer.kernel.btf import FUNC, TYPEDEF, KernelTypes
from tracer.kernel.bytecode import LICENCE, Bytecode, linked
from tracer.kernel.xt_extensions import PlannedExtension

_log = logging.getLogger(__name__)

ATTACH_TYPES = {"BTFTP": bpf_syscall.TRACEPOINT_BTF, "FENTRY": bpf_syscall.FENTRY, "FEXIT": bpf_syscall.FEXIT}

MAX_THREADS = 8
"""Most programs that are loaded at a time."""

Row = PlannedProbe | PlannedExtension

_Key = tuple[str, ProgramTarget, int]
"""A program's name, what it is loaded for, and the number of its row."""


class LoadedPrograms:
    """The maps, and the programs that are attached so far; a context manager that removes them.

    Attributes:
        maps: The maps by name.
        functions: Descriptor of the first program of each attached row of the probe table, by name of the row.
        refused: Programs that the kernel's verifier refused, as "PROGRAM for FUNCTION".
    """

    def __init__(self, code: Bytecode, types: KernelTypes, addresses: Mapping[str, int]) -> None:
        """Creates the maps.

        Args:
            code: The programs.
            types: The kernel's BTF.
            addresses: Addresses of kernel variables by name.

        Raises:
            CompileFailed: The kernel refused a map.
        """
        self._code, self._types = code, types
        self._constants = {f"address of {name}": address for name, address in addresses.items()}
        self._constants |= kernel_memory.constants(types)
        self._of_kernel = kernel_memory.functions(types)
        self.maps: dict[str, BpfMap] = {}
        self.functions: dict[str, int] = {}
        self.refused: set[str] = set()
        self._programs: dict[_Key, int] = {}
        self._failures: dict[_Key, OSError] = {}
        self._names: dict[str, int] = {}
        self._links: dict[tuple[str, str], int] = {}
        self._btf: dict[str, int] = {}
        try:
            for definition in code.maps:
                self.maps[definition.name] = BpfMap(definition)
        except OSError as e:
            self.close()
            raise CompileFailed(f"The kernel refused a map of the programs: {e.strerror}.") from e

    def attach(self, rows: list[PlannedProbe]) -> tuple[list[PlannedProbe], list[UnavailableProbe]]:
        """Attaches the rows in the order of the probe table.

        Returns:
            Rows that run, and rows that the kernel refused.

        Raises:
            NoProbe: The kernel refused a row that every run needs.
        """
        self.load(rows)
        attached, refused = [], []
        for row in rows:
            try:
                self.functions[row.probe.name] = self._attach(row)
                attached.append(row)
            except OSError as e:
                why = f"the kernel refused it ({e.strerror})"
                if row.probe.needed:
                    raise NoProbe(f"Tracing needs {row.symbol}, but {why}.") from e
                refused.append(UnavailableProbe(row.probe, why))
        return attached, refused

    def watch(self, rows: list[PlannedExtension]) -> list[PlannedExtension]:
        """Attaches to functions of matches and targets; returns the attached ones. A match by kprobe needs entry and return."""
        self.load(rows)
        return [row for row in rows if self._watch(row)]

    def _watch(self, row: PlannedExtension) -> bool:
        try:
            self._attach(row)
        except OSError:
            return False
        return True

    def _attach(self, row: Row) -> int:
        """Attaches all programs of a row; returns the descriptor of the first program."""
        first, *_ = [self._attach_one(row, name, way) for name, way in row.programs]
        return first

    def _attach_one(self, row: Row, name: str, way: str) -> int:
        program = self._program(row, name, way)
        if way in ATTACH_TYPES:
            link = bpf_syscall.open_tracing(program)
        elif way == "RAWTP":
            link = bpf_syscall.open_tracing(program, row.symbol)
        else:
            link = bpf_syscall.open_kprobe(program, row.symbol, at_return=way == "KRETPROBE")
        self._links[row.module + ":" + row.symbol, name] = link
        return program

    def load(self, rows: Iterable[Row], report: Callable[[int, int], None] = lambda done, count: None) -> None:
        """Loads the programs of these rows, several at a time: the verifier takes longer than anything else of a warm start.

        A program that is refused is reported when its row is attached.

        Args:
            rows: Rows to attach afterwards.
            report: Called with the number of programs that are loaded, and of all of them.
        """
        from concurrent.futures import ThreadPoolExecutor

        wanted: dict[_Key, Row] = {}
        for row in rows:
            for name, way in row.programs:
                with suppress(OSError):  # no such function: as above
                    key = self._key(row, name, way)
                    if key not in self._programs and key not in self._failures:
                        wanted[key] = row
        if not wanted:
            return
        with ThreadPoolExecutor(min(MAX_THREADS, len(os.sched_getaffinity(0)))) as threads:
            for done, _ in enumerate(threads.map(self._load_one, wanted, wanted.values()), 1):
                report(done, len(wanted))

    def _load_one(self, key: _Key, row: Row) -> None:
        name, target, number = key
        fds = [self.maps[definition.name].fd for definition in self._code.maps]
        constants, programs = self._constants | {"row": number}, self._code.programs
        code = linked(programs.get(name, b""), fds, constants, programs, self._of_kernel)
        try:
            self._programs[key] = self._names[f"{name} for {row.symbol}"] = bpf_syscall.load_program(
                row.symbol, code, LICENCE, target
            )
        except Refused as e:
            if e.errno != errno.EPERM:  # EPERM: this process may not load it, whatever is in it
                self.refused.add(f"{name} for {row.symbol}")
            _log.debug("program %s for %s refused: %s\n%s", name, row.symbol, e.strerror, e.log)
            self._failures[key] = e

    def _program(self, row: Row, name: str, way: str) -> int:
        """The descriptor of a loaded program.

        Raises:
            OSError: The kernel refused it, or there is no such function.
        """
        key = self._key(row, name, way)
        if key in self._failures:
            raise self._failures[key]
        return self._programs[key]

    def _key(self, row: Row, name: str, way: str) -> _Key:
        return name, self._target(row, way), row.number if isinstance(row, PlannedProbe) else 0

    def _target(self, row: Row, way: str) -> ProgramTarget:
        """What the kernel has to know about the attached function before it verifies the program."""
        if way == "RAWTP":
            return ProgramTarget(bpf_syscall.RAW_TRACEPOINT)
        if way not in ATTACH_TYPES:
            return ProgramTarget(bpf_syscall.KPROBE)
        btf = self._types.module(row.module)
        name, kind = (f"btf_trace_{row.symbol}", TYPEDEF) if way == "BTFTP" else (row.symbol, FUNC)
        function = btf.find(name, kind) if btf else None
        if function is None or function.btf is not btf:
            raise OSError(errno.ENOENT, f"BTF of {row.module} has no function {row.symbol}")
        if row.module == "vmlinux":
            return ProgramTarget(bpf_syscall.TRACING, ATTACH_TYPES[way], function.number)
        if row.module not in self._btf:
            self._btf[row.module] = bpf_syscall.module_btf(row.module)
        return ProgramTarget(bpf_syscall.TRACING, ATTACH_TYPES[way], function.number, self._btf[row.module])

    def detach(self, rows: Iterable[Row]) -> None:
        """Detaches the programs of these rows; they stay loaded."""
        for row in rows:
            for name, _ in row.programs:
                os.close(self._links.pop((row.module + ":" + row.symbol, name)))

    def miss_counters(self, programs: Sequence[int]) -> MissCounters:
        """Counts how often the kernel skipped programs because one was running on that CPU. programs: their descriptors."""
        return MissCounters(programs)

    def run_times(self) -> dict[str, tuple[int, int]]:
        """(ns, number of runs) by "PROGRAM for FUNCTION", while kernel.bpf_stats_enabled is 1."""
        return {name: bpf_syscall.run_time(fd) for name, fd in self._names.items()}

    def close(self) -> None:
        """Detaches and unloads everything."""
        self._close(self._links)
        self._close(self._programs)
        self._close(self._btf)
        for each in self.maps.values():
            each.close()
        self.maps.clear()

    def _close(self, descriptors: dict[Any, int]) -> None:
        for fd in descriptors.values():
            os.close(fd)
        descriptors.clear()

    def __enter__(self) -> LoadedPrograms:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
