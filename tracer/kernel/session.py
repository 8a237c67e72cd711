# SPDX-License-Identifier: Apache-2.0
"""A tracing session: reads BTF, attaches probes, then returns batches of events until it is closed."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tracer.errors import NoProbe
from tracer.events import record
from tracer.events.record import EventArray, Slots
from tracer.kernel import attach_plan, filter_maps, xt_extensions
from tracer.kernel.attach_plan import KernelAbilities, PlannedProbe, UnavailableProbe
from tracer.kernel.bcc_program import BccProgram, abilities, load_bcc
from tracer.kernel.btf import KernelTypes
from tracer.kernel.generated_headers import headers
from tracer.kernel.kallsyms import Symbols
from tracer.kernel.loss_counters import Loss, LossCounters
from tracer.kernel.ring_buffer import PAGE, RingBuffer
from tracer.model.filter import Filter

_log = logging.getLogger(__name__)

RING_BYTES = 16 << 20
FILES = 192
"""Number of file descriptors that a run needs for maps, for reading rules and for recording. Each program needs two more: its
own and that of its attachment.
"""


@dataclass(frozen=True)
class Kernel:
    """BTF, symbols and release of the running kernel, read once."""

    types: KernelTypes
    symbols: Symbols
    release: str

    @classmethod
    def running(cls) -> Kernel:
        return cls(KernelTypes(), Symbols.running(), os.uname().release)

    def drop_reasons(self) -> dict[int, str]:
        """Names of enum skb_drop_reason by number, which differs between kernels; empty before 5.17."""
        names = self.types.vmlinux.enumerators("skb_drop_reason")
        return {v: n.removeprefix("SKB_DROP_REASON_") for n, v in names.items()}


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
    kernel: Kernel, supported: KernelAbilities, verbose: bool, only: str = "", rules: bool = True
) -> tuple[list[PlannedProbe], list[UnavailableProbe]]:
    """Plans the probes for this kernel.

    Args:
        kernel: The running kernel.
        supported: What bcc and the kernel can attach.
        verbose: Include the probes that show every hook.
        only: "kprobe" = no fentry, as on a kernel without it.
        rules: Include the probes that show which rules acted.

    Returns:
        Rows that run, and rows that do not.

    Raises:
        NoProbe: A row that every run needs is unavailable.
    """
    supported = KernelAbilities(False, False) if only == "kprobe" else supported
    planned, refused = attach_plan.plan(kernel.types, kernel.symbols, supported, verbose, rules)
    for row in refused:
        if row.probe.needed:
            raise NoProbe(f"Tracing needs {row.probe.shows}, but {row.why}.")
    return planned, refused


class Session:
    """Attached probes with a filter in force; a context manager.

    Args:
        kernel: The running kernel.
        packet_filter: The filter.
        verbose: Attach the probes that show every hook.
        only: "kprobe" = no fentry.
        ring_bytes: Size of the ring's data, bytes.
        rules: Attach the probes that show which rules acted.
        snaplen: Bytes of each packet that are copied, 0 = none.

    Attributes:
        planned: Rows that run.
        refused: Rows that do not run.
        watched: Functions of iptables matches and targets with a probe.
        extensions: The matches and targets of iptables that these functions belong to.
        compile_seconds: Time to compile, s.
        attach_seconds: Time to attach, s.
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
    ) -> None:
        bcc = load_bcc()
        with contextlib.suppress(ValueError):  # no CAP_SYS_RESOURCE; since 5.11 maps do not count as locked memory
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        supported = KernelAbilities(False, False) if only == "kprobe" else abilities(bcc)
        planned, refused = choose(kernel, supported, verbose, only, rules)
        cpus = possible_cpus()
        watched = xt_extensions.plan(kernel.types, kernel.symbols, supported) if rules else []
        require_descriptors(FILES + 2 * sum(len(p) for p in (*(r.programs for r in planned), *(r.programs for r in watched))))
        texts = headers(kernel.types, kernel.symbols, planned, watched, ring_bytes // PAGE, cpus, snaplen)
        began = time.monotonic()
        self._program = BccProgram(bcc, texts)
        try:
            compiled = time.monotonic()
            filter_maps.write(self._program.bpf, packet_filter)
            self.planned, unattached = self._program.attach(planned)
            self.refused = refused + unattached
            self.watched = self._program.watch(watched)
            self.extensions = frozenset(extension for row in self.watched for extension in row.extensions)
            self.compile_seconds, self.attach_seconds = compiled - began, time.monotonic() - compiled
            count, compile_s, attach_s = len(self.planned), self.compile_seconds, self.attach_seconds
            _log.debug("%d rows of probes attached: compiled in %.2f s, attached in %.2f s", count, compile_s, attach_s)
            for row in self.refused:
                _log.debug("probe %s not attached: %s", row.probe.name, row.why)
            self._ring = RingBuffer(
                self._program.bpf[b"events"].map_fd, ring_bytes, record.SLOT, self._program.bpf[b"fills"].map_fd
            )
            self._counters = LossCounters(self._program, self.planned, cpus)
        except BaseException:
            self._program.close()
            raise

    def set_filter(self, packet_filter: Filter) -> None:
        """Changes the filter of the running probes."""
        filter_maps.write(self._program.bpf, packet_filter)

    def drain(self) -> Slots:
        """The ring slots written since the last call; record.unpack decodes them."""
        return self._ring.drain()

    def events(self) -> EventArray:
        """All events written since the last call, as an array of `struct event` (bpf/records/event.h)."""
        return record.unpack(self._ring.drain())

    def losses(self) -> list[Loss]:
        """Losses since the last call."""
        return self._counters.read()

    def poll_losses(self) -> None:
        """Reads the loss counters when the interval is over; losses() returns the result."""
        self._counters.poll()

    def close(self) -> None:
        self._ring.close()
        self._counters.close()
        self._program.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
