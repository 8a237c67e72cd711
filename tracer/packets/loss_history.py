# SPDX-License-Identifier: Apache-2.0
"""Finds the packets that may lack an event after a loss of events.

The kernel side numbers the events of each packet before it reserves room in the ring. So an event that found no room leaves a
gap in the packet's numbers, unless it was the last one. A BPF program that the kernel skipped, or a missed function return,
takes no number: any packet under way at that time may lack an event. The time of the loss is known as the interval between two
readings of the loss counter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tracer.events.record import EventRow, Kind
from tracer.model.loss import LEFT_OUT, Loss

SLACK_NS = 20_000_000
"""Longest expected time between two events of a packet, ns. A packet that stays in a queue for longer and then loses its next
event is shown up to its last event, without a mark of incompleteness."""
MAX_LOSSES = 200
"""Most losses kept. Beyond that the two oldest are merged into one that spans both."""

LAST_KINDS = frozenset({Kind.EVENT_DROP, Kind.EVENT_SOCKET, Kind.EVENT_SYN, Kind.EVENT_ACCEPT, Kind.EVENT_REQUEST})
"""Kinds of the last event of a packet that a socket took or that was freed."""
PROBES_AFTER_SOCKET = frozenset({"socket", "syn", "accept", "request", "clue", "drop"})
"""Probes of events that may follow after a socket took the packet. None of them follows after the packet was freed."""
COPY_PROBES = frozenset({"clone", "copy", "pcopy", "tap", "tap_ring"})
"""Probes that track copies of a packet. A loss there hides a copy, but nothing is concluded from a missing copy."""


class LossHistory:
    """Losses of a run, oldest first."""

    def __init__(self) -> None:
        self._losses: deque[Loss] = deque()

    def add(self, losses: Sequence[Loss], now: int) -> None:
        """Adds losses. `now`: ns, CLOCK_MONOTONIC; used as the end of losses that have no end time."""
        intervals = {(loss.probe, loss.why, loss.since, loss.until or now) for loss in losses}
        for probe, why, since, until in sorted(intervals, key=lambda each: each[3]):
            if probe != LEFT_OUT and probe not in COPY_PROBES:
                self._losses.append(Loss(probe, -1, 1, why, since, until))
        while len(self._losses) > MAX_LOSSES:
            first, second = self._losses.popleft(), self._losses.popleft()
            both = min(first.since, second.since), max(first.until, second.until)
            self._losses.appendleft(Loss("any", -1, 1, "", *both))

    def concerns(self, events: Sequence[EventRow]) -> bool:
        """Whether a packet may lack an event that leaves no gap. `events`: all events of the packet, in time order."""
        if not self._losses:
            return False
        began, last = events[0].time, events[-1].time
        near = (loss for loss in self._losses if loss.since <= last + SLACK_NS and began - SLACK_NS <= loss.until)
        return any(_may_lack(loss, events) for loss in near)

    def __len__(self) -> int:
        return len(self._losses)

    def forget(self, before: int) -> None:
        """Drops losses that no packet still to come can have: all of them end after `before` (ns, CLOCK_MONOTONIC)."""
        while self._losses and self._losses[0].until + SLACK_NS < before:
            self._losses.popleft()


def _may_lack(loss: Loss, events: Sequence[EventRow]) -> bool:
    if not loss.numbered:
        return True
    last = events[-1]
    if last.time > loss.until + SLACK_NS:
        return False  # the lost event came before the last one, so its number is missing and shows the gap
    if last.kind == Kind.EVENT_DROP:
        return False
    return last.kind not in LAST_KINDS or loss.probe in PROBES_AFTER_SOCKET
