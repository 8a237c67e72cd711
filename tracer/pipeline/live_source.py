# SPDX-License-Identifier: Apache-2.0
"""Events of the running kernel, batch by batch."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from tracer.events import record
from tracer.events.record import Slots
from tracer.util import memory
from tracer.util.worker import user_warnings

if TYPE_CHECKING:
    from tracer.kernel.session import Session
    from tracer.kube.filter_renewal import RenewedFilter
    from tracer.kube.owner_resolver import OwnerResolver
    from tracer.model.filter import Filter
    from tracer.model.loss import Loss
    from tracer.pipeline.budget_keeper import BudgetKeeper
from tracer.pipeline.answer_period import AnswerPeriod
from tracer.pipeline.source import Batch, RunProgress

POLL_SECONDS = 0.05
"""Pause between two reads of the ring buffer, seconds."""
MANY_EVENTS, FEW_EVENTS = 20_000, 5_000
"""Number of events after which the heap's free pages are returned, after a batch that is smaller than FEW_EVENTS. What stays of
a burst is spread over the heap, so the C library keeps nearly all of it: 60 MB after 8,000 packets in a second."""
RULES_SECONDS = 5.0
"""Maximum time that the end of a run waits for rules that are being read, seconds."""


class LiveSource:
    """Reads batches from the running probes.

    Args:
        session: the attached probes.
        kube: gives notes and renewed filters.
        budget: limits what is read; None = no limit.
        period: time in which answers of this machine stay the same; it ends before each batch, and after each chunk of packets.
    """

    explains_backlog = False

    def __init__(
        self,
        session: Session,
        kube: OwnerResolver | None = None,
        budget: BudgetKeeper | None = None,
        period: AnswerPeriod | None = None,
    ) -> None:
        self.session, self._kube, self._budget = session, kube, budget
        self._period = period or AnswerPeriod()
        self.seconds = 0.0
        self._events = self._last = 0
        if kube:
            kube.attach(self.set_filter)

    def batches(self, run: RunProgress) -> Generator[Batch, None, None]:
        """Yields batches until the run is stopped, a limit is reached, or the command has ended; then the remaining events."""
        began, limit = time.monotonic(), run.limits.seconds
        while not (run.stop.is_requested or run.is_limit_reached):
            if limit and time.monotonic() - began >= limit:
                break
            if run.command and run.command.poll() is not None:
                time.sleep(2 * POLL_SECONDS)
                break
            time.sleep(self._budget.pause if self._budget else POLL_SECONDS)
            yield from self._next()
        until = time.monotonic() + RULES_SECONDS
        while run.is_waiting_for_rules and not run.is_limit_reached:
            if time.monotonic() >= until or run.stop.is_overdue:
                break
            time.sleep(POLL_SECONDS)
            yield from self._next()
        yield from self._next(last=True)
        self.seconds = time.monotonic() - began

    def _next(self, last: bool = False) -> Iterator[Batch]:
        with self._kube.unchanged() if self._kube else nullcontext():
            yield self.read(last)

    def read(self, last: bool = False) -> Batch:
        """The next batch. last: it is the last one."""
        self._period.end()
        now = time.monotonic_ns()
        batch = record.unpack(self._drained(now)) if self._budget else self.session.events()
        self._return_memory(len(batch))
        return Batch(now, batch, self._losses(), last)

    def _drained(self, now: int) -> Slots:
        """The slots of this batch, without those of packets that are left out. now: ns, CLOCK_MONOTONIC, before draining."""
        slots = self.session.drain()
        return self._budget.limited(slots, now) if self._budget else slots

    def _losses(self) -> Sequence[Loss]:
        losses = self.session.losses()
        return self._budget.with_own(losses) if self._budget else losses

    def _return_memory(self, events: int) -> None:
        """Returns the memory of earlier batches; the last one is still there. events: number of events of the next batch."""
        if self._events >= MANY_EVENTS and max(self._last, events) < FEW_EVENTS:
            memory.return_free_pages()
            self._events = 0
        self._events, self._last = self._events + events, events

    def poll_losses(self) -> None:
        self._period.end()
        self.session.poll_losses()

    def notes(self) -> list[str]:
        budget = self._budget.notes() if self._budget else []
        return budget + (self._kube.notes() if self._kube else []) + user_warnings.read()

    def set_filter(self, new_filter: Filter) -> None:
        self.session.set_filter(new_filter)

    def mark_unexplained(self, chunks: int) -> None: ...

    def was_unexplained(self) -> bool:
        return False

    def renewals(self) -> list[RenewedFilter]:
        return self._kube.renewals() if self._kube else []
