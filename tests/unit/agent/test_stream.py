# SPDX-License-Identifier: Apache-2.0
"""The two directions of an agent's stream over pipes: hello, credit, pings, the lease, and a client that goes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support import sample_packets
from tracer.agent.agent_output import BATCH_NS, AgentOutput
from tracer.agent.frame_queue import FrameQueue
from tracer.agent.stream import AgentStream
from tracer.cluster.node_stream import NodeStream, Result
from tracer.model.loss import Loss
from tracer.model.summary import RunSummary
from tracer.pipeline.shutdown import StopRequest
from tracer.protocol.frames import FrameWriter
from tracer.protocol.limits import CREDIT_FRAMES
from tracer.protocol.messages import BatchEnd, FrameKind, Hello, Shed

PATIENCE_SECONDS = 20.0


class Wire:
    """An agent's stream, and the client at its other end."""

    def __init__(self, lease_seconds: float = 60.0, most: int = 0) -> None:
        source, self.client_input = os.pipe()
        self.from_agent, target = os.pipe()
        self.queue = FrameQueue(most=most) if most else FrameQueue()
        self.output = AgentOutput(self.queue, shows_all_results=False)
        self.agent = AgentStream(self.queue, Hello(node="node-a"), source, target, lease_seconds)
        self.client = NodeStream()
        self.results: list[Result] = []
        os.set_blocking(self.from_agent, False)

    def send(self, data: bytes) -> None:
        os.write(self.client_input, data)

    def read(self) -> list[Result]:
        """Takes what has come."""
        try:
            while data := os.read(self.from_agent, 1 << 16):
                self.results += self.client.feed(data, time.monotonic_ns())
        except BlockingIOError:
            pass
        return self.results

    def wait(self, condition: Callable[[], object]) -> None:
        """Reads until a condition holds."""
        until = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < until, [result.kind for result in self.results]
            self.read()
            time.sleep(0.005)

    def kinds(self) -> list[FrameKind]:
        return [result.kind for result in self.read()]


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.queue.end()
    os.close(made.client_input)


def test_results_come_on_credit_alone(wire: Wire) -> None:
    wire.wait(lambda: wire.client.hello)
    wire.output.begin([], "--port 1", "6.12")
    wire.output.packet(sample_packets.node_port())
    wire.output.lost(Loss("nf_hook_slow", 1, 5, "the ring buffer was full"))
    wire.output.end_batch(1)
    wire.wait(lambda: FrameKind.BEGIN in wire.kinds())
    time.sleep(0.3)
    assert wire.kinds() == [FrameKind.HELLO, FrameKind.BEGIN]
    wire.send(wire.client.greeting())
    wire.wait(lambda: FrameKind.BATCH in wire.kinds())
    assert wire.kinds()[2:] == [FrameKind.PACKET, FrameKind.LOSS, FrameKind.BATCH]
    # A template and a packet, a loss, the end of the batch.
    wire.wait(lambda: wire.queue.credit == CREDIT_FRAMES - 4)


def test_the_ends_of_batches_without_a_result_are_sent_from_time_to_time(wire: Wire) -> None:
    wire.send(wire.client.greeting())
    for now in (BATCH_NS, BATCH_NS + 1, 2 * BATCH_NS - 1, 2 * BATCH_NS):
        wire.output.end_batch(now)
    wire.wait(lambda: wire.kinds().count(FrameKind.BATCH) == 2)
    wire.output.end_batch(2 * BATCH_NS + 1)
    wire.output.note("done")
    wire.wait(lambda: FrameKind.NOTE in wire.kinds())
    assert wire.kinds().count(FrameKind.BATCH) == 2


def test_the_end_of_a_batch_has_the_time_up_to_which_all_packets_were_given(wire: Wire) -> None:
    wire.send(wire.client.greeting())
    wire.output.settled(BATCH_NS - 7)
    wire.output.end_batch(BATCH_NS)
    wire.output.settled(3 * BATCH_NS)
    wire.output.end_batch(2 * BATCH_NS)
    wire.wait(lambda: wire.kinds().count(FrameKind.BATCH) == 2)
    ends = [result.content for result in wire.read() if result.kind is FrameKind.BATCH]
    assert ends == [BatchEnd(BATCH_NS - 7), BatchEnd(2 * BATCH_NS)]


def test_pongs_have_the_clock_and_need_no_credit(wire: Wire) -> None:
    before = time.monotonic_ns()
    wire.send(wire.client.ping(time.monotonic_ns()))
    wire.wait(lambda: FrameKind.PONG in wire.kinds())
    wire.output.set_clock(0)
    wire.wait(lambda: wire.client.clock.packets is not None)
    offset, error = wire.client.clock.read(time.monotonic_ns())
    assert offset is not None and abs(offset) <= error <= time.monotonic_ns() - before


def test_a_stop_and_the_summary(wire: Wire) -> None:
    stop = StopRequest()
    wire.agent.attach(stop)
    wire.send(wire.client.greeting() + wire.client.stop())
    wire.wait(lambda: stop.is_requested)
    wire.output.summary(RunSummary(7))
    wire.agent.close(0)
    wire.wait(lambda: wire.client.end)
    assert not wire.agent.has_lost_client and wire.kinds()[-2:] == [FrameKind.SUMMARY, FrameKind.END]


def test_the_lease_ends_the_run() -> None:
    wire, stop = Wire(lease_seconds=0.5), StopRequest()
    wire.agent.attach(stop)
    wire.send(wire.client.greeting())
    wire.wait(lambda: stop.is_overdue)
    assert wire.agent.has_lost_client and wire.agent.problem == "no word from the client for 0 s"
    wire.agent.close(0)


def test_pings_hold_the_lease() -> None:
    wire, stop = Wire(lease_seconds=1.0), StopRequest()
    wire.agent.attach(stop)
    until = time.monotonic() + 2.5
    while time.monotonic() < until:
        wire.send(wire.client.ping(time.monotonic_ns()))
        time.sleep(0.1)
    assert not stop.is_requested
    os.close(wire.client_input)
    wire.wait(lambda: stop.is_overdue)
    assert wire.agent.has_lost_client and not wire.agent.problem


def test_a_lease_that_ends_before_the_run_began_ends_it_at_once() -> None:
    wire, stop = Wire(lease_seconds=0.3), StopRequest()
    wire.wait(lambda: wire.agent.has_lost_client)
    wire.agent.attach(stop)
    assert stop.is_overdue


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n" + bytes(20), "a frame of"),
        (FrameWriter(False).frame(FrameKind.CREDIT, b'{"$":"Credit","frames":-1}'), "a credit of -1"),
        (FrameWriter(False).frame(FrameKind.CREDIT, b'{"$":"Credit","frames":99999999999}'), "a credit of"),
        (FrameWriter(False).frame(FrameKind.CREDIT, b'"many"'), "no Credit"),
        (FrameWriter(False).frame(FrameKind.CLIENT_HELLO, b'{"$":"ClientHello","protocol":9}'), "version 9"),
    ],
)
def test_a_client_that_does_not_follow_the_protocol(data: bytes, why: str) -> None:
    wire = Wire()
    wire.send(data)
    wire.wait(lambda: wire.agent.has_lost_client)
    assert "the client's stream cannot be read" in wire.agent.problem and why in wire.agent.problem


def test_a_client_that_does_not_read_costs_counted_packets_and_no_time() -> None:
    wire, stop = Wire(most=64), StopRequest()
    wire.agent.attach(stop)
    packet = sample_packets.node_port()
    began = time.monotonic()
    for _ in range(5000):
        wire.output.packet(packet)
    assert time.monotonic() - began < PATIENCE_SECONDS
    wire.send(wire.client.greeting())
    wire.output.summary(RunSummary(5000))
    wire.agent.close(0)
    wire.wait(lambda: wire.client.end)
    shed = sum(r.content.frames["packet"] for r in wire.results if isinstance(r.content, Shed))
    assert shed + wire.kinds().count(FrameKind.PACKET) == 5000 and shed > 4000


def test_credit_that_never_comes_is_counted_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.agent.stream.DRAIN_SECONDS", 0.3)
    wire = Wire()
    for _ in range(10):
        wire.output.packet(sample_packets.node_port())
    wire.output.summary(RunSummary(10))
    wire.agent.close(0)
    wire.wait(lambda: wire.client.end)
    assert [r.content.frames for r in wire.results if isinstance(r.content, Shed)] == [{"packet": 10}]
    assert wire.kinds()[-2:] == [FrameKind.SUMMARY, FrameKind.END]
