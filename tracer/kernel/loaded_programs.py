# SPDX-License-Identifier: Apache-2.0
"""Loads compiled programs into the kernel, attaches every planned row, and removes everything at the end.

Everything that depends on this start is filled in here: descriptors of maps, addresses of the kernel, BTF numbers of
functions. A row that cannot be attached only loses the data of that row.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum, IntEnum
from types import TracebackType
from typing import Any

from tracer.errors import CompileFailed, NoProbe
from tracer.events import cstruct
from tracer.kernel import bpf_syscall, kernel_memory
from tracer.kernel.attach_plan import NESTED, PAIRED, PlannedProbe, UnavailableProbe
from tracer.kernel.bpf_syscall import BpfMap, MissCounters, ProgramTarget, Refused
from tracer.kernel.btf import FUNC, TYPEDEF, KernelTypes
from tracer.kernel.bytecode import LICENCE, Bytecode, linked
from tracer.kernel.xt_extensions import PlannedExtension

_log = logging.getLogger(__name__)

TRAMPOLINES = frozenset({"FENTRY", "FEXIT"})
"""Ways of attaching in which the program that was attached last runs first, as pairs of programs need it."""
ATTACH_TYPES = {"BTFTP": bpf_syscall.TRACEPOINT_BTF, "FENTRY": bpf_syscall.FENTRY, "FEXIT": bpf_syscall.FEXIT}

MAX_THREADS = 8
"""Most programs that are loaded at a time."""

Row = PlannedProbe | PlannedExtension

ROWS = cstruct.define("records/loss_counters.h", "MOST_ROWS")
"""The value of the constant NESTED in second programs, and the number of rows in the map of the pairs."""

CALL_SECONDS = 0.05
"""Wait for the calls that are under way when a program is detached, s: it still runs at their end."""


class Part(Enum):
    """The programs of a row: a single one, or a pair. The values are the ends of their titles."""

    SINGLE = ""
    FIRST = ", first of a pair"
    SECOND = ", second of a pair"


class PairState(IntEnum):
    """As enum pair_state of bpf/core/nested_call.h."""

    OFF = 0
    REPLACES = 1
    ON = 2


_Key = tuple[str, ProgramTarget, int, Part]
"""A program's name, what it is loaded for, the number of its row, and which of the row's programs it is."""


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
        self._links: dict[tuple[str, str, Part], int] = {}
        self._pairs: frozenset[int] = frozenset()
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
        self._set_pairs(PairState.ON, self._pairs)
        return attached, refused

    def watch(self, rows: list[PlannedExtension]) -> list[PlannedExtension]:
        """Attaches to functions of matches and targets; returns the attached ones. A match by kprobe needs entry and return."""
        self.load(rows)
        return [row for row in rows if self._watch(row)]

    def attach_pairs(self, rows: Iterable[PlannedProbe]) -> dict[int, int]:
        """Attaches pairs of programs, which handle no call before they are used (bpf/core/nested_call.h).

        A row without one, because it has no trampoline or the kernel refuses it, keeps its single program.

        Args:
            rows: Attached rows.

        Returns:
            The descriptor of the second program of each row that has a pair, by number of the row.
        """
        rows = [row for row in rows if row.way in TRAMPOLINES] if "program_pairs" in self.maps else []
        for part in (Part.FIRST, Part.SECOND):
            self.load(rows, part=part)
        found = {}
        for row in rows:
            with suppress(OSError):
                self._attach_one(row, row.program, row.way, Part.FIRST)
                found[row.number] = self._attach_one(row, row.program, row.way, Part.SECOND)
        return found

    def use_pairs(self, rows: Iterable[PlannedProbe]) -> None:
        """Detaches the single programs of rows with a pair, and lets the pairs handle the calls.

        Calls in between are counted as lost: `unhandled` in bpf/records/loss_counters.h.
        """
        rows = list(rows)
        self._pairs = frozenset(row.number for row in rows)
        self._set_pairs(PairState.REPLACES, self._pairs)
        for row in rows:
            self._detach_one(row, row.program, Part.SINGLE)
        time.sleep(CALL_SECONDS)
        self._set_pairs(PairState.ON, self._pairs)

    def use_single_programs(self, rows: Iterable[PlannedProbe]) -> None:
        """Attaches the single programs of rows with a pair again, and lets them handle the calls.

        Raises:
            OSError: The kernel refused one. Its row handles no call, and counts all as lost.
        """
        self._set_pairs(PairState.REPLACES, self._pairs)
        time.sleep(CALL_SECONDS)
        for row in rows:
            if row.number in self._pairs:
                self._attach_one(row, row.program, row.way, Part.SINGLE)
        self._pairs = frozenset()
        self._set_pairs(PairState.OFF, self._pairs)

    def _set_pairs(self, state: PairState, rows: Collection[int]) -> None:
        """Sets the state of the pairs of these rows; all others are off. rows: their numbers."""
        if "program_pairs" in self.maps:
            self.maps["program_pairs"][bytes(4)] = bytes(state if number in rows else PairState.OFF for number in range(ROWS))

    def _watch(self, row: PlannedExtension) -> bool:
        try:
            self._attach(row)
        except OSError:
            return False
        return True

    def _attach(self, row: Row) -> int:
        """Attaches all programs of a row; returns the descriptor of the first program."""
        is_paired = isinstance(row, PlannedProbe) and row.number in self._pairs
        parts = (Part.FIRST, Part.SECOND) if is_paired else (Part.SINGLE,)
        first, *_ = [self._attach_one(row, name, way, part) for name, way in row.programs for part in parts]
        return first

    def _attach_one(self, row: Row, name: str, way: str, part: Part) -> int:
        program = self._program(row, name, way, part)
        if way in ATTACH_TYPES:
            link = bpf_syscall.open_tracing(program)
        elif way == "RAWTP":
            link = bpf_syscall.open_tracing(program, row.symbol)
        else:
            link = bpf_syscall.open_kprobe(program, row.symbol, at_return=way == "KRETPROBE")
        self._links[row.module + ":" + row.symbol, name, part] = link
        return program

    def _detach_one(self, row: Row, name: str, part: Part) -> None:
        """Detaches a program of a row if it is attached."""
        link = self._links.pop((row.module + ":" + row.symbol, name, part), None)
        if link is not None:
            os.close(link)

    def load(
        self,
        rows: Iterable[Row],
        report: Callable[[int, int], None] = lambda done, count: None,
        part: Part = Part.SINGLE,
    ) -> None:
        """Loads the programs of these rows, several at a time: the verifier takes longer than anything else of a warm start.

        A program that is refused is reported when its row is attached.

        Args:
            rows: Rows to attach afterwards.
            report: Called with the number of programs that are loaded, and of all of them.
            part: Which of their programs are loaded.
        """
        from concurrent.futures import ThreadPoolExecutor

        wanted: dict[_Key, Row] = {}
        for row in rows:
            for name, way in row.programs:
                with suppress(OSError):  # no such function: as above
                    key = self._key(row, name, way, part)
                    if key not in self._programs and key not in self._failures:
                        wanted[key] = row
        if not wanted:
            return
        with ThreadPoolExecutor(min(MAX_THREADS, len(os.sched_getaffinity(0)))) as threads:
            for done, _ in enumerate(threads.map(self._load_one, wanted, wanted.values()), 1):
                report(done, len(wanted))

    def _load_one(self, key: _Key, row: Row) -> None:
        name, target, number, part = key
        fds = [self.maps[definition.name].fd for definition in self._code.maps]
        of_part = {"row": number, NESTED: ROWS if part is Part.SECOND else 0, PAIRED: int(part is not Part.SINGLE)}
        constants, programs = self._constants | of_part, self._code.programs
        title = f"{name} for {row.symbol}{part.value}"
        code = linked(programs.get(name, b""), fds, constants, programs, self._of_kernel)
        try:
            self._programs[key] = self._names[title] = bpf_syscall.load_program(row.symbol, code, LICENCE, target)
        except Refused as e:
            if e.errno != errno.EPERM:  # EPERM: this process may not load it, whatever is in it
                self.refused.add(title)
            _log.debug("program %s refused: %s\n%s", title, e.strerror, e.log)
            self._failures[key] = e

    def _program(self, row: Row, name: str, way: str, part: Part) -> int:
        """The descriptor of a loaded program.

        Raises:
            OSError: The kernel refused it, or there is no such function.
        """
        key = self._key(row, name, way, part)
        if key in self._failures:
            raise self._failures[key]
        return self._programs[key]

    def _key(self, row: Row, name: str, way: str, part: Part) -> _Key:
        return name, self._target(row, way), row.number if isinstance(row, PlannedProbe) else 0, part

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
        self._set_pairs(PairState.OFF, ())
        for row in rows:
            for name, _ in row.programs:
                for part in Part:
                    self._detach_one(row, name, part)

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
