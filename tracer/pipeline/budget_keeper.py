# SPDX-License-Identifier: Apache-2.0
"""Keeps the reading of the probes within a budget: measures this process, and does what reader_budget.py decides."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence

from tracer.events import record
from tracer.events.record import Slots
from tracer.model.detail import Detail
from tracer.model.loss import LEFT_OUT, Loss
from tracer.pipeline.event_shedding import EventShedder
from tracer.pipeline.reader_budget import BudgetLimits, ReaderBudget, Reading
from tracer.util import memory
from tracer.util.reading_limit import reading_limit

MEMORY_SECONDS = 1.0
"""Time between two readings of the memory, s."""
TRIM_SECONDS = 10.0
"""Time between two attempts to give memory back while it is above its limit, s."""


def processor_seconds() -> float:
    """Processor time of this process and of its children that have ended, s."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


class BudgetKeeper:
    """The budget of one run.

    Args:
        limits: What the run may use.
        set_detail: Tells the probes how much to write.
        cpu: Gives the processor time used so far, s.
        resident: Gives the resident memory, bytes.

    Attributes:
        pause: Time until the next reading, s.
    """

    def __init__(
        self,
        limits: BudgetLimits,
        set_detail: Callable[[Detail], None],
        cpu: Callable[[], float] = processor_seconds,
        resident: Callable[[], int] = memory.resident_bytes,
    ) -> None:
        self._limits, self._set_detail, self._cpu, self._resident = limits, set_detail, cpu, resident
        self._budget, self._shedder = ReaderBudget(limits), EventShedder(time.monotonic_ns())
        self._events = self._left_out = self._memory = 0
        self._has_cut = False
        self._read_memory = self._trimmed = float("-inf")
        self._notes: list[str] = []
        reading_limit.text = ""

    @property
    def pause(self) -> float:
        return self._budget.pause

    def limited(self, slots: Slots, now: int) -> Slots:
        """The slots of a reading without those of packets that are left out.

        Args:
            slots: As drained, of shape (n, slot).
            now: Time before they were drained, ns, CLOCK_MONOTONIC.
        """
        self._watch_memory(now / 1e9)
        detail = self._budget.detail
        reading = Reading(now / 1e9, self._cpu(), self._memory, self._events, self._left_out, self._has_cut)
        sentence = self._budget.measure(reading)
        if self._budget.detail != detail:
            self._set_detail(self._budget.detail)
        if sentence:
            self._notes.append(sentence)
            reading_limit.text = sentence if self._budget.detail else ""
        kept = self._shedder.limited(slots, now, self._budget.most_events)
        self._events, self._has_cut, self._left_out = record.count(kept), len(kept) < len(slots), 0
        return kept

    def _watch_memory(self, now: float) -> None:
        if not self._limits.memory or now - self._read_memory < MEMORY_SECONDS:
            return
        self._read_memory, self._memory = now, self._resident()
        if self._memory > self._limits.memory and now - self._trimmed >= TRIM_SECONDS:
            self._trimmed = now
            memory.trim()

    def with_own(self, losses: Sequence[Loss]) -> Sequence[Loss]:
        """The losses of a reading with the packets that were left out of it. losses: those that the probes have counted."""
        self._left_out = sum(loss.count for loss in losses if loss.probe == LEFT_OUT)
        return [*losses, *self._shedder.losses()]

    def notes(self) -> list[str]:
        """Messages for the user since the previous call: one for each change of the detail."""
        notes, self._notes = self._notes, []
        return notes
