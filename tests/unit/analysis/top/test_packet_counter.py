# SPDX-License-Identifier: Apache-2.0
"""The sink: intervals by the batches' times, a change of the dimension, losses, and captures as one interval."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest

from tests.support import sample_packets as samples
from tracer.analysis.top.interval import Interval, Losses
from tracer.analysis.top.packet_counter import TopOutput
from tracer.model.evidence import Evidence
from tracer.model.loss import LEFT_OUT, Loss
from tracer.model.summary import RunSummary

SECOND = 1_000_000_000


class Shown:
    """A view that keeps what it is given."""

    def __init__(self) -> None:
        self.dimension, self.intervals = "service", list[Interval]()

    def begin(self) -> None: ...

    def show(self, interval: Interval) -> None:
        self.intervals.append(interval)

    def note(self, text: str) -> bool:
        return False

    def close(self, last: Interval) -> None:
        self.show(last)


def begun(view: Shown, seconds: float, monkeypatch: pytest.MonkeyPatch) -> TopOutput:
    monkeypatch.setattr("time.monotonic_ns", lambda: 0)
    output = TopOutput(view, seconds, io.StringIO(), io.StringIO())
    output.begin([], "")
    return output


def test_each_packet_is_in_one_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    view = Shown()
    output = begun(view, 2.0, monkeypatch)
    for second in range(1, 8):
        output.packet(samples.node_port())
        if second == 3:
            output.lost(Loss(LEFT_OUT, -1, 9, "full"))
        output.end_batch(second * SECOND)
    output.packet(samples.node_port())
    output.summary(RunSummary(unexplained=4))
    assert [interval.total.packets for interval in view.intervals] == [2, 2, 2, 2]
    assert [interval.seconds for interval in view.intervals] == [2.0, 2.0, 2.0, 1.0]
    assert [interval.losses.shed for interval in view.intervals] == [0, 9, 0, 0]
    assert view.intervals[-1].so_far == Losses(0, 9, 4), "what was lost before stays in the head"


def test_another_dimension_begins_a_new_interval_and_keeps_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    view = Shown()
    output = begun(view, 2.0, monkeypatch)
    output.packet(samples.node_port())
    output.lost(Loss("table", 0, 3, "full"))
    view.dimension = "client"
    output.end_batch(SECOND)
    output.packet(samples.node_port())
    output.end_batch(3 * SECOND)
    (interval,) = view.intervals
    assert interval.dimension == "client" and set(interval.rows) == {"192.168.56.1"}
    assert interval.so_far == Losses(events=3)


def test_a_capture_is_one_interval() -> None:
    view = Shown()
    output = TopOutput(view, math.inf, io.StringIO(), io.StringIO())
    output.packet(samples.node_port())
    output.packet(replace(samples.node_port(), unexplained=Evidence.OBSERVED))
    output.end_batch(10**15)
    output.summary(RunSummary(seconds=60.0, unexplained=1))
    (interval,) = view.intervals
    assert interval.seconds == 60.0 and interval.total.packets == 1 and interval.losses.unexplained == 1
