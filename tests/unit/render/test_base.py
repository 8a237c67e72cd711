# SPDX-License-Identifier: Apache-2.0
"""What all output formats do with their stream: when results reach its reader."""

from __future__ import annotations

import io
import time
from collections.abc import Callable

import pytest

from tests.support import sample_packets as samples
from tracer import render
from tracer.render.base import FLUSH_SECONDS, Output

FORMATS = ("oneline", "text", "json")


class Buffered(io.StringIO):
    """A stream with a buffer. reached: what has reached its reader."""

    reached = ""

    def flush(self) -> None:
        self.reached = self.getvalue()


@pytest.fixture(params=FORMATS)
def output(request: pytest.FixtureRequest) -> Output:
    return render.find(request.param)(Buffered(), io.StringIO())


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Advances the clock, which stands still, by seconds."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def add(seconds: float) -> None:
        now[0] += seconds

    return add


def reached(output: Output) -> int:
    """Number of packets of which something has reached the reader."""
    assert isinstance(output.out, Buffered)
    return output.out.reached.count("40812")


def one(output: Output) -> int:
    """Number of times that the port is in one packet."""
    written = Buffered()
    type(output)(written, io.StringIO()).packet(samples.node_port())
    return written.reached.count("40812")


def test_a_packet_outside_a_batch_is_flushed_at_once(output: Output) -> None:
    output.packet(samples.node_port())
    assert reached(output) == one(output) > 0


def test_packets_of_a_batch_are_flushed_at_its_end(output: Output, advance: Callable[[float], None]) -> None:
    output.begin_batch()
    output.packet(samples.node_port())
    assert reached(output) == 0
    output.end_batch(0)
    assert reached(output) > 0
    before = reached(output)
    output.packet(samples.node_port())
    assert reached(output) > before


def test_the_packets_of_a_long_batch_are_flushed_meanwhile(output: Output, advance: Callable[[float], None]) -> None:
    output.begin_batch()
    output.packet(samples.node_port())
    advance(FLUSH_SECONDS)
    output.packet(samples.node_port())
    before = reached(output)
    assert before > one(output)
    output.packet(samples.node_port())
    assert reached(output) == before


def test_a_note_comes_after_the_packets_before_it(output: Output, advance: Callable[[float], None]) -> None:
    output.begin_batch()
    output.packet(samples.node_port())
    output.note("a note")
    assert reached(output) == one(output)
