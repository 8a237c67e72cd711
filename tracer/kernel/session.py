# SPDX-License-Identifier: Apache-2.0
"""A tracing session: reads BTF, attaches probes, then returns batches of events until it is closed."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tracer.errors import NoProbe
from tracer.events import record
from tracer.events.record import SUBSYSTEM_SHIFT, EventArray, Slots
from tracer.kernel import attach_plan, filter_maps, lookup_programs, xt_extensions
from tracer.kernel.attach_plan import KernelAbilities, PlannedProbe, UnavailableProbe, abilities
from tracer.kernel.bcc_library import installed
from tracer.kernel.btf import KernelTypes
from tracer.kernel.bytecode import Bytecode
from tracer.kernel.cache_directory import directory_of_environment
from tracer.kernel.generated_headers import headers
from tracer.kernel.kallsyms import Symbols
from tracer.kernel.loaded_programs import LoadedPrograms
from tracer.kernel.loss_counters import Loss, LossCounters
from tracer.kernel.program_cache import ProgramCache
from tracer.kernel.program_pairs import ProgramPairs
from tracer.kernel.program_source import ProgramSource
from tracer.kernel.ring_buffer import PAGE, RingBuffer
from tracer.kernel.struct_layouts import LAYOUTS
from tracer.kernel.symbol_cache import SymbolCache
from tracer.kernel.xt_extensions import PlannedExtension
from tracer.model.detail import Detail
from tracer.model.filter import Filter
from tracer.util.worker import user_warnings

_log = logging.getLogger(__name__)

RING_BYTES = 16 << 20
FILES = 192
"""Number of file descriptors that a run needs for maps, for reading rules and for recording. Each program needs two more: its
own and that of its attachment.
"""
MODULE_REASONS = (("openvswitch", "ovs_drop_reason", "OVS_DROP_"),)
"""Drop reasons that a module describes: the module, its enum, and the beginning of its enumerators."""
KPROBES_ONLY = KernelAbilities(fentry=False, module_fentry=False)
NO_RIGHT = errno.EPERM
"""The error of a process without the right, or under lockdown: another way of attaching would meet it, too."""


@dataclass(frozen=True)
class Kernel:
    """BTF, symbols and release of the running kernel, read once."""

    types: KernelTypes
    symbols: Symbols
    release: str

    @classmethod
    def running(cls) -> Kernel:
        symbols = Symbols.running(cache=SymbolCache(directory_of_environment()))
        return cls(KernelTypes(), symbols, os.uname().release)

    def free(self) -> None:
        """Frees types and symbols, which a run rarely needs after its start; they are read again when they are."""
        self.types.free()
        self.symbols.free()

    def drop_reasons(self) -> dict[int, str]:
        """Names of drop reasons by number, which differs between kernels; empty before 5.17.

        Reasons of a subsystem have its number in their upper half (since 6.4). Its own name stands for the number of none of
        them: it is all that is known of the others if the module does not describe them.
        """
        kernel = self.types.vmlinux
        names = {v: n.removeprefix("SKB_DROP_REASON_") for n, v in kernel.enumerators("skb_drop_reason").items()}
        for name, number in kernel.enumerators("skb_drop_reason_subsys").items():
            if number and not name.endswith("_NUM"):
                names[number << SUBSYSTEM_SHIFT] = name.removeprefix("SKB_DROP_REASON_SUBSYS_")
        for module, enum, prefix in MODULE_REASONS:
            found = (self.types.module(module) or kernel).enumerators(enum)
            names.update({v: n for n, v in found.items() if n.startswith(prefix) and not n.endswith("_MAX")})
        return names


def require_descriptors(count: int) -> None:
    """Raises the limit of open files of this process to `count`.

    Raises:
        NoProbe: The hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    except ValueError as e:
        raise NoProbe(
            f"Tracing needs {count} file descriptors, and this process may have {hard}: raise the hard limit (ulimit -Hn)."
        ) from e


def possible_cpus() -> int:
    """Number of possible CPUs, numbered from 0: "0-7" is 8."""
    return int(Path("/sys/devices/system/cpu/possible").read_text().replace(",", "-").split("-")[-1]) + 1


def choose(
    kernel: Kernel,
    supported: KernelAbilities,
    verbose: bool,
    only: str = "",
    rules: bool = True,
    lookups: bool = False,
    programs: bool = False,
) -> tuple[list[PlannedProbe], list[UnavailableProbe]]:
    """Plans the probes for this kernel.

    Args:
        kernel: The running kernel.
        supported: What bcc and the kernel can attach.
        verbose: Include the probes that show every hook.
        only: "kprobe" = no fentry, as on a kernel without it.
        rules: Include the probes that show which rules acted.
        lookups: Include the probes that show what programs of sk_lookup decide.
        programs: Include the probes that show what eBPF programs at interfaces do.

    Returns:
        Rows that run, and rows that do not.

    Raises:
        NoProbe: A row that every run needs is unavailable.
    """
    supported = KPROBES_ONLY if only == "kprobe" else supported
    planned, refused = attach_plan.plan(kernel.types, kernel.symbols, supported, verbose, rules, lookups, programs)
    for row in refused:
        if row.probe.needed:
            raise NoProbe(f"Tracing needs {row.probe.shows}, but {row.why}.")
    return planned, refused


@dataclass(frozen=True)
class Announcements:
    """What a start says while it works.

    Attributes:
        report: Called with what is being done now, as a phrase.
        warn: Called with a sentence about something that is not as it should be.
    """

    report: Callable[[str], None] = lambda _: None
    warn: Callable[[str], None] = user_warnings.add


class Session:
    """Attached probes with a filter in force; a context manager.

    Args:
        kernel: The running kernel.
        packet_filter: The filter.
        verbose: Attach the probes that show every hook.
        only: "kprobe" = no fentry.
        ring_bytes: Size of the ring's data, bytes.
        rules: Attach the probes that show which rules acted.
        programs: Attach the probes that show which packets eBPF programs at interfaces redirect or rewrite.
        snaplen: Bytes of each packet that are copied, 0 = none.
        announcements: Where to say what is being done.

    Attributes:
        planned: Rows that run.
        refused: Rows that do not run.
        watched: Functions of iptables matches and targets with a probe.
        extensions: The matches and targets of iptables that these functions belong to.
        compile_seconds: Time to compile, s; 0 = the programs were in the cache.
        attach_seconds: Time to load and attach, s.
        pairs: The pairs of programs, for calls for which single ones are skipped.
    """

    def __init__(
        self,
        kernel: Kernel,
        packet_filter: Filter,
        verbose: bool = False,
        only: str = "",
        ring_bytes: int = RING_BYTES,
        rules: bool = True,
        snaplen: int = 0,
        programs: bool = False,
        announcements: Announcements | None = None,
    ) -> None:
        says, library = announcements or Announcements(), installed()
        with contextlib.suppress(ValueError):  # no CAP_SYS_RESOURCE; since 5.11 maps do not count as locked memory
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        lookups = bool(lookup_programs.links())
        cpus, cache = possible_cpus(), ProgramCache(directory_of_environment())
        self._kernel, self._filter, self._report = kernel, packet_filter, says.report
        self.compile_seconds = self.attach_seconds = 0.0

        def start(supported: KernelAbilities) -> list[UnavailableProbe]:
            """Plans, loads and attaches the probes. Returns the rows that do not run."""
            planned, refused = choose(kernel, supported, verbose, only, rules, lookups, programs)
            watched = xt_extensions.plan(kernel.types, kernel.symbols, supported) if rules else []
            needed = [*(row.programs for row in planned), *(row.programs for row in watched)]
            require_descriptors(FILES + 2 * sum(map(len, needed)) + 4 * len(planned))
            texts = headers(kernel.types, kernel.symbols, planned, watched, ring_bytes // PAGE, cpus, snaplen)
            modules = {row.module for row in planned} | {row.module for row in watched} | {row.module for row in LAYOUTS}
            source = ProgramSource(texts, kernel.types.digests(modules), library, cache, says.warn, says.report)
            refused += self._start(source, planned, watched)
            kernel.symbols.keep()
            if kernel.symbols.rejected and source.uses_cache:
                says.warn(f"The kernel's symbols are read anew: {kernel.symbols.rejected}.")
            return refused

        supported = KPROBES_ONLY if only == "kprobe" else abilities(library, kernel.symbols)
        try:
            self.refused = start(supported)
        except NoProbe as e:
            # The function may be patched (livepatch), or have another user of ftrace that takes it for itself: EBUSY.
            if not supported.fentry or not isinstance(e.__cause__, OSError) or e.__cause__.errno == NO_RIGHT:
                raise
            says.warn(f"{e} All probes are attached by kprobe instead, which costs more (--attach kprobe).")
            self.refused = start(KPROBES_ONLY)
        try:
            self.extensions = frozenset(extension for row in self.watched for extension in row.extensions)
            count, compile_s, attach_s = len(self.planned), self.compile_seconds, self.attach_seconds
            _log.debug("%d rows of probes attached: compiled in %.2f s, attached in %.2f s", count, compile_s, attach_s)
            for row in self.refused:
                _log.debug("probe %s not attached: %s", row.probe.name, row.why)
            maps = self._programs.maps
            self._ring = RingBuffer(maps["events"].fd, ring_bytes, record.SLOT, maps["fills"].fd)
            self._counters = LossCounters(self._programs, self.planned, cpus)
            self.pairs = ProgramPairs(self._programs, self.planned, self._counters)
        except BaseException:
            self._programs.close()
            raise

    def _start(
        self, source: ProgramSource, planned: list[PlannedProbe], watched: list[PlannedExtension]
    ) -> list[UnavailableProbe]:
        """Loads and attaches the programs: those from the cache, or compiled ones. Returns the rows that the kernel refused."""
        stored = source.stored()
        if stored:
            try:
                unattached = self._attach(stored.code, planned, watched)
                if self._programs.refused <= stored.refused:
                    return unattached
                self._programs.close()
            except NoProbe:
                if self._programs.refused <= stored.refused:
                    raise
            source.reject("the kernel refuses those that an earlier start has kept")
        began = time.monotonic()
        code = source.compiled()
        self.compile_seconds = time.monotonic() - began
        unattached = self._attach(code, planned, watched)
        source.keep(code, frozenset(self._programs.refused))
        return unattached

    def _attach(self, code: Bytecode, planned: list[PlannedProbe], watched: list[PlannedExtension]) -> list[UnavailableProbe]:
        """Loads and attaches programs. Returns the rows that the kernel refused."""
        self._report("loading programs")
        began = time.monotonic()
        self._programs = LoadedPrograms(code, self._kernel.types, self._kernel.symbols.variables)
        try:
            filter_maps.write(self._programs.maps, self._filter)
            self._programs.load([*planned, *watched], lambda done, count: self._report(f"loading programs, {done} of {count}"))
            self._report(f"attaching {len(planned) + len(watched)} probes")
            self.planned, unattached = self._programs.attach(planned)
            self.watched = self._programs.watch(watched)
        except BaseException:
            self._programs.close()
            raise
        self.attach_seconds = time.monotonic() - began
        return unattached

    def set_filter(self, packet_filter: Filter) -> None:
        """Changes the filter of the running probes."""
        filter_maps.write(self._programs.maps, packet_filter)

    def set_detail(self, detail: Detail) -> None:
        """Changes how much the running probes write about packets."""
        self._ring.set_detail(detail)

    def drain(self) -> Slots:
        """The ring slots written since the last call; record.unpack decodes them."""
        return self._ring.drain()

    def events(self) -> EventArray:
        """All events written since the last call, as an array of `struct event` (bpf/records/event.h)."""
        return record.unpack(self._ring.drain())

    def losses(self) -> list[Loss]:
        """Losses since the last call."""
        new = self._counters.read()
        self.pairs.note()
        return new

    @property
    def nested_calls(self) -> int:
        """Number of calls for which second programs were skipped, and that first ones handled."""
        return sum(self._counters.nested())

    def poll_losses(self) -> None:
        """Reads the loss counters when the interval is over; losses() returns the result."""
        self._counters.poll()

    def close(self) -> None:
        self.pairs.close()
        self._ring.close()
        self._counters.close()
        self._programs.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
