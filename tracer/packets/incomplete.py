# SPDX-License-Identifier: Apache-2.0
"""Which packets may lack an event, when events were lost.

The kernel side numbers the events of each packet before it looks for room in the ring. So an event that found no room leaves a
gap in its packet's numbers, unless it was the last one. A program that the kernel skipped, or a return that was missed, takes
no number: any packet on its way at that moment may lack an event. When that was is known: between two readings of the counter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tracer.events.record import Event, Kind
from tracer.model.loss import LEFT_OUT, Loss

SLACK_NS = 20_000_000
"""An event comes within this time after the one before it. A packet that rests longer, in a queue, and loses the next event, is
told as far as it was seen."""
MOST = 200
"""So many losses are remembered; of more, the two oldest become one that lasted as long as both."""

ENDS = frozenset({Kind.EVENT_DROP, Kind.EVENT_SOCKET, Kind.EVENT_SYN, Kind.EVENT_ACCEPT, Kind.EVENT_REQUEST})
"""What a packet that a socket has taken, or that was freed, ends with."""
BEHIND_SOCKET = frozenset({"socket", "syn", "accept", "request", "clue", "drop"})
"""Kinds of events that may come after a socket has taken the packet; none of them after it was freed."""
OF_COPIES = frozenset({"clone", "copy", "pcopy", "tap", "tap_ring"})
"""Probes that follow copies of a packet: without them a copy is not told, and nothing is concluded from that."""


class LossHistory:
    """The losses of a run, oldest first."""

    def __init__(self) -> None:
        self._losses: deque[Loss] = deque()

    def add(self, losses: Sequence[Loss], now: int) -> None:
        """Takes what was lost. now: ns, CLOCK_MONOTONIC; the end of what is not said to have ended earlier."""
        told = {(loss.probe, loss.why, loss.since, loss.until or now) for loss in losses}
        for probe, why, since, until in sorted(told, key=lambda each: each[3]):
            if probe != LEFT_OUT and probe not in OF_COPIES:
                self._losses.append(Loss(probe, -1, 1, why, since, until))
        while len(self._losses) > MOST:
            first, second = self._losses.popleft(), self._losses.popleft()
            both = min(first.since, second.since), max(first.until, second.until)
            self._losses.appendleft(Loss("any", -1, 1, "", *both))

    def concerns(self, events: Sequence[Event]) -> bool:
        """Whether a packet may lack an event that leaves no gap. events: all of it, in the order of time."""
        if not self._losses:
            return False
        began, last = events[0].time, events[-1].time
        near = (loss for loss in self._losses if loss.since <= last + SLACK_NS and began - SLACK_NS <= loss.until)
        return any(_may_lack(loss, events) for loss in near)

    def __len__(self) -> int:
        return len(self._losses)

    def forget(self, before: int) -> None:
        """No packet that ended before this time is still to come."""
        while self._losses and self._losses[0].until + SLACK_NS < before:
            self._losses.popleft()


def _may_lack(loss: Loss, events: Sequence[Event]) -> bool:
    if not loss.numbered:
        return True
    last = events[-1]
    if last.time > loss.until + SLACK_NS:
        return False  # what was lost came before it, and its number is missing
    if last.kind == Kind.EVENT_DROP:
        return False
    return last.kind not in ENDS or loss.probe in BEHIND_SOCKET
