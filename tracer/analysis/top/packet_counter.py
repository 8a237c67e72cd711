# SPDX-License-Identifier: Apache-2.0
"""The sink of `top`: counts the packets of a run, and gives each finished interval to a view."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Protocol, TextIO

from tracer.analysis.top.interval import Interval, IntervalCounter, Losses, Measurement
from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.render.base import LostEvents, Output


class View(Protocol):
    """Shows intervals.

    Attributes:
        dimension: What rows stand for; when it changes, a new interval begins.
    """

    dimension: str

    def begin(self) -> None:
        """Packets follow."""

    def show(self, interval: Interval) -> None:
        """An interval is finished."""

    def note(self, text: str) -> bool:
        """A line for the user; False = the view does not show it."""
        ...

    def close(self, last: Interval) -> None:
        """Shows the last interval; nothing follows."""


class TopOutput(Output):
    """Counts packets, SYNs and losses.

    Args:
        view: Shows the intervals.
        seconds: Length of an interval, s; math.inf = the whole run is one interval.
        out: Stream for results; None = standard output.
        err: Stream for notes; None = standard error.
        host: Name of the node; "" = not known.
    """

    def __init__(
        self,
        view: View,
        seconds: float = math.inf,
        out: TextIO | None = None,
        err: TextIO | None = None,
        host: str = "",
    ) -> None:
        super().__init__(out, err)
        self._view, self._seconds, self._host = view, seconds, host
        self._measurement = Measurement()
        self._counter = IntervalCounter(view.dimension, self._measurement, host)
        self._began = self._now = 0
        self._losses = Losses()

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        self.note_limits(results)
        self._view.begin()
        self._began = time.monotonic_ns()

    def packet(self, packet: Packet) -> None:
        if not packet.unexplained:  # the summary counts it as not explained
            self._counter.packet(packet)

    def syn(self, verdict: HandshakeVerdict) -> None:
        self._counter.syn(verdict)

    def lost(self, loss: LostEvents) -> None:
        super().lost(loss)
        self._counter.lost(loss)

    def finding(self, finding: Finding) -> None:
        self.note_finding(finding)

    def end_batch(self, now: int) -> None:
        """Finishes the interval when it is long enough, or when the view asks for other rows."""
        self._now = now
        if self._view.dimension != self._counter.dimension:
            self._begin_interval(now)
        elif now - self._began >= self._seconds * 1e9:
            interval = self._closed((now - self._began) / 1e9)
            self._begin_interval(now, interval.losses)
            self._view.show(interval)

    def _begin_interval(self, now: int, losses: Losses | None = None) -> None:
        """Begins an interval. losses: those of the one before; None = it was not finished."""
        self._losses += losses or self._counter.close(0, Losses()).losses
        self._counter, self._began = IntervalCounter(self._view.dimension, self._measurement, self._host), now

    def _closed(self, seconds: float, unexplained: int = 0) -> Interval:
        """The interval, finished. seconds: its length; unexplained: packets that were seen in it, but not explained."""
        return self._counter.close(seconds, self._losses, unexplained)

    def summary(self, summary: RunSummary) -> None:
        """Finishes the last interval."""
        seconds = summary.seconds if math.isinf(self._seconds) else (self._now - self._began) / 1e9
        self._view.close(self._closed(seconds, summary.unexplained))

    def note(self, text: str) -> None:
        if not self._view.note(text):
            super().note(text)

    def doctor(self, results: Sequence[CheckResult], status: int) -> None: ...
