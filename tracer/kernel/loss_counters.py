# SPDX-License-Identifier: Apache-2.0
"""Losses by probe and CPU: events lost in a full ring, shed packets, missed returns, skipped programs."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator, Mapping
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
SKIPPED = "another probe was running"
REPLACED = "the probe was being replaced"
TWICE = "the probe may have run twice"
MOST_TWICE = 100
"""Most calls that both programs of a pair handle although the kernel runs them in the expected order: where it preempts a task
between the two, and the task goes on on another CPU. In another order there are as many as calls."""
READINGS = 5
"""Most further readings of a row's counters, until they agree that no call was lost."""
SHED = {"PACKETS_SHED": RING_NEARLY_FULL, "OPENINGS_SHED": OPENINGS_LEFT_OUT, "FAILURES_SHED": FAILURES_LEFT_OUT}
"""Why packets were shed, by the name of their counter in bpf/records/loss_counters.h."""


class LossCounters:
    """Reads the loss counters and returns the increase since the last reading. cpus: as given to attach_plan.header.

    Attributes:
        skips: Number of readings after which calls had been lost because programs were skipped.
        is_doubtful: First programs of pairs handled so many calls for which the second ones were not skipped that the kernel
            does not run them in the expected order.
    """

    def __init__(self, program: LoadedPrograms, rows: list[PlannedProbe], cpus: int) -> None:
        self._rows = tuple(rows)
        self._program = program
        self._firsts = [program.functions[row.probe.name] for row in rows]
        self._misses_now = program.miss_counters(self._firsts)
        self._missed_before, self._last_lost, self._twice = [0] * len(rows), [0] * len(rows), [0] * len(rows)
        self._with_second: set[int] = set()
        self._last_misses: tuple[list[int], list[int]] = [], []
        self.skips = 0
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
        unhandled = self._counters["unhandled"].sum(0)
        for row in self._rows:
            if unhandled[row.number]:
                yield Loss(row.probe.name, -1, int(unhandled[row.number]), REPLACED)
        if self._kept:
            # A call may be running on each CPU, so a small difference is no loss.
            missed = self._counters["kept"].sum(0).astype(int) - self._counters["returned"].sum(0) - len(self._counters)
            for row in self._kept:
                if missed[row.number] > 0:
                    yield Loss(row.probe.name, -1, int(missed[row.number]), MISSED)

    def _misses(self) -> Iterator[Loss]:
        """As _totals: the calls that no program of a row handled, or both programs of a pair."""
        misses = self._skipped()
        if (misses, self._twice) == self._last_misses:
            return
        self._last_misses = misses, list(self._twice)
        for row, count, twice in zip(self._rows, misses, self._twice, strict=True):
            yield Loss(row.probe.name, -1, count, SKIPPED)
            if twice:
                yield Loss(row.probe.name, -1, twice, TWICE)

    def _skipped(self) -> list[int]:
        """For each row the number of calls that no program handled.

        With a single program these are the calls for which it was skipped. With a pair, those for which the second program was
        skipped, less those that the first one handled then: read first, so the number may be too large, never too small.
        """
        nested = self.nested()
        misses = self._misses_now.read()
        for place, row in enumerate(self._rows):
            if row.number in self._with_second:
                misses[place] = self._without_handled(place, misses[place], nested[row.number])
        return [before + count for before, count in zip(self._missed_before, misses, strict=True)]

    def _without_handled(self, place: int, count: int, handled: int) -> int:
        """The number of calls of a row that no program handled.

        Args:
            place: Of the row.
            count: Number of calls for which its second program was skipped.
            handled: Number of those that the first one handled, read before.
        """
        known, twice = self._last_lost[place], self._twice[place]
        least = count - handled + twice
        for _ in range(READINGS):
            if least <= known:
                break
            # Such calls came while the numbers were read. No later reading gives less than there were at the first one.
            handled = int(self._counters["nested"][:, self._rows[place].number].sum())
            least = min(least, self._misses_now.read_one(place) - handled + twice)
        # A loss does not end: the first program has handled a call for which the second one was not skipped.
        self._twice[place] += max(0, known - least)
        self._last_lost[place] = max(known, least)
        return self._last_lost[place]

    def count_seconds(self, seconds: Mapping[int, int]) -> None:
        """From now on counts the calls for which these second programs are skipped; the losses until now stay.

        Calls for which they were skipped before they were on count once, as if they were lost.

        Args:
            seconds: Descriptors of the second programs of the pairs that are on, by number of the row.
        """
        until_now = self._skipped()
        counted = [seconds.get(row.number, first) for row, first in zip(self._rows, self._firsts, strict=True)]
        self._misses_now, self._with_second = self._program.miss_counters(counted), set(seconds)
        self._missed_before, self._last_lost = [0] * len(self._rows), [0] * len(self._rows)
        now = self._misses_now.read()
        for place, row in enumerate(self._rows):
            self._missed_before[place] = until_now[place] - (0 if row.number in seconds else now[place])

    @property
    def is_doubtful(self) -> bool:
        twice = sum(self._twice)
        return twice > MOST_TWICE and twice > sum(self.nested()) / 2

    def nested(self) -> list[int]:
        """Number of calls for which second programs were skipped, and that first ones handled, by number of the row."""
        counts: list[int] = self._counters["nested"].sum(0).tolist()
        return counts

    def poll(self) -> None:
        """Reads the counters when the interval is over, so that the time of a loss is known within a short interval."""
        now = time.monotonic_ns()
        if now - self._read[False] >= MISSES_SECONDS * 1e9:
            self._add_increase(self._totals(), now, False)
        if now - self._read[True] >= MISSES_SECONDS * 1e9:
            self._add_increase(self._misses(), now, True)

    def _add_increase(self, totals: Iterator[Loss], now: int, misses: bool) -> None:
        since, self._read[misses] = self._read[misses], now
        is_skipped = False
        for total in totals:
            key = (total.probe, total.cpu, total.why)
            added = total.count - self._last_totals.get(key, 0)
            if added > 0:
                self._last_totals[key] = total.count
                # A few missed returns look like running calls and are counted only when there are more, so their time is not
                # known. A loss during the reading of the counters may already be counted.
                began = 0 if total.why == MISSED else since
                self._new.append(replace(total, count=added, since=began, until=time.monotonic_ns()))
                is_skipped = is_skipped or total.why == SKIPPED
        self.skips += is_skipped

    def read(self) -> list[Loss]:
        """New losses since the last call."""
        self._add_increase(self._totals(), time.monotonic_ns(), False)
        self.poll()
        new, self._new = self._new, []
        return new

    def close(self) -> None:
        del self._counters
        self._map.close()
