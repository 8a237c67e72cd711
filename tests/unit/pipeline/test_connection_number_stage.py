# SPDX-License-Identifier: Apache-2.0
"""Each packet gets the number of its connection, and each connection is given once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import sample_packets, syns
from tests.support.builders import SECOND
from tracer.analysis.collector import PacketCollector
from tracer.model.endpoints import Endpoints
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.model.timeline import Timeline
from tracer.pipeline.connection_number_stage import ConnectionNumberStage


class Numbered:
    """A stage and what it gives."""

    def __init__(self, **options: int) -> None:
        self.given: list[Timeline] = []
        self.stage = ConnectionNumberStage(**options)
        self.output = PacketCollector(lambda packet: None, take_connection=self.given.append)

    def feed(self, *packets: Packet) -> list[int]:
        return [self.stage.feed(packet, self.output).connection for packet in packets]

    def flush(self) -> list[int]:
        self.stage.flush(RunSummary(), self.output)
        return [timeline.number for timeline in self.given]


def client(port: int) -> Packet:
    """A SYN without an answer, of a client port of its own."""
    packet = sample_packets.node_port()
    ends = Endpoints("192.168.56.1", port, "192.168.56.10", 30285)
    return replace(packet, endpoints=ends, flow=None, hops=packet.hops[:1], identity=port, seq=port)


def test_packets_of_one_connection_have_one_number() -> None:
    one = Numbered()
    assert one.feed(syns.syn(), syns.synack(), syns.last_ack(), client(9), syns.syn(at=SECOND, seq=77)) == [1, 1, 1, 2, 3]
    assert one.flush() == [1, 2, 3]


def test_a_connection_is_given_once_also_after_a_pause() -> None:
    one = Numbered()
    start = client(9).hops[0].time
    one.feed(client(9))
    one.stage.end_batch(start + 60 * SECOND, one.output)
    assert one.given == [], "it is idle, but not over"
    assert one.feed(replace(client(9), tcp_flags="ACK")) == [1] and one.flush() == [1]


@pytest.mark.parametrize("is_written", [False, True])
def test_too_many_connections_are_given_early(is_written: bool) -> None:
    one = Numbered(max_connections=2)
    start = client(9).hops[0].time
    for port in range(1, 6):
        one.feed(client(port))
        if is_written:
            one.stage.end_batch(start + 60 * SECOND, one.output)
    assert one.flush() == [1, 2, 3, 4, 5]
    assert [timeline.why for timeline in one.given] == ["aged out"] * 3 + ["the run ended"] * 2
    assert all(timeline.over and not timeline.entries for timeline in one.given)
