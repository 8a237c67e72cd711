# SPDX-License-Identifier: Apache-2.0
"""Losses by probe and CPU: events lost in a full ring, shed packets, missed returns, skipped programs."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracer.events import cstruct
from tracer.events.record import Kind
from tracer.kernel.attach_plan import PlannedProbe
from tracer.kernel.loaded_programs import LoadedPrograms
from tracer.model.loss import FAILURES_LEFT_OUT, LEFT_OUT, NO_ROOM, OPENINGS_LEFT_OUT, RING_NEARLY_FULL
from tracer.model.loss import Loss as Loss

MISSES_SECONDS = 0.1
"""Interval between two readings of the counts of skipped programs, s; one system call for each program. It is shorter than
the idle timeout of packets (tracer/packets/assembler.py), so a packet is marked incomplete in time."""

MISSED = "its return was missed"
SHED = {"PACKETS_SHED": RING_NEARLY_FULL, "OPENINGS_SHED": OPENINGS_LEFT_OUT, "FAILURES_SHED": FAILURES_LEFT_OUT}
"""Why packets were shed, by the name of their counter in bpf/records/loss_counters.h."""


class LossCounters:
    """Reads the loss counters and returns the increase since the last reading. cpus: as given to attach_plan.header."""

    def __init__(self, program: LoadedPrograms, rows: list[PlannedProbe], cpus: int) -> None:
        self._rows = tuple(rows)
        self._misses_now = program.miss_counters([program.functions[row.probe.name] for row in rows])
        self._last_misses: list[int] = []
        self._last_bytes = b""
        self._kinds = {k.value: (k.name[6:].lower(), NO_ROOM) for k in Kind}
        for name, why in SHED.items():
            self._kinds[cstruct.define("records/loss_counters.h", name)] = LEFT_OUT, why
        self._last_totals: dict[tuple[str, int, str], int] = {}
        counters_dtype = cstruct.dtype("records/loss_counters.h", "loss_counters")
        self._map = mmap.mmap(program.maps["loss_counters"].fd, cpus * counters_dtype.itemsize, mmap.MAP_SHARED, mmap.PROT_READ)
        self._counters = np.frombuffer(self._map, counters_dtype, cpus)
        self._kept = [row for row in rows if row.way == "KRETPROBE"]
        self._read = dict.fromkeys((False, True), time.monotonic_ns())
        self._new: list[Loss] = []

    def _totals(self) -> Iterator[Loss]:
        """The totals; nothing if all counters are as they were at the last call, as nearly always."""
        counters = self._map[:]
        if counters == self._last_bytes:
            return
        self._last_bytes = counters
        lost = self._counters["lost"]
        if lost.any():
            for cpu, kind in np.argwhere(lost):
                probe, why = self._kinds[int(kind)]
                yield Loss(probe, int(cpu), int(lost[cpu, kind]), why)
        if self._kept:
            # A call may be running on each CPU, so a small difference is no loss.
            missed = self._counters["kept"].sum(0).astype(int) - self._counters["returned"].sum(0) - len(self._counters)
            for row in self._kept:
                if missed[row.number] > 0:
                    yield Loss(row.probe.name, -1, int(missed[row.number]), MISSED)

    def _misses(self) -> Iterator[Loss]:
        """As _totals."""
        misses = self._misses_now.read()
        if misses == self._last_misses:
            return
        self._last_misses = misses
        for row, count in zip(self._rows, misses, strict=True):
            if count:
                yield Loss(row.probe.name, -1, count, "another probe was running")

    def poll(self) -> None:
        """Reads the counters when the interval is over, so that the time of a loss is known within a short interval."""
        now = time.monotonic_ns()
        if now - self._read[False] >= MISSES_SECONDS * 1e9:
            self._add_increase(self._totals(), now, False)
        if now - self._read[True] >= MISSES_SECONDS * 1e9:
            self._add_increase(self._misses(), now, True)

    def _add_increase(self, totals: Iterator[Loss], now: int, misses: bool) -> None:
        since, self._read[misses] = self._read[misses], now
        for total in totals:
            key = (total.probe, total.cpu, total.why)
            added = total.count - self._last_totals.get(key, 0)
            if added > 0:
                self._last_totals[key] = total.count
                # A few missed returns look like running calls and are counted only when there are more, so their time is not
                # known. A loss during the reading of the counters may already be counted.
                began = 0 if total.why == MISSED else since
                self._new.append(replace(total, count=added, since=began, until=time.monotonic_ns()))

    def read(self) -> list[Loss]:
        """New losses since the last call."""
        self._add_increase(self._totals(), time.monotonic_ns(), False)
        self.poll()
        new, self._new = self._new, []
        return new

    def close(self) -> None:
        del self._counters
        self._map.close()
