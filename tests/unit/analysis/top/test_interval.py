# SPDX-License-Identifier: Apache-2.0
"""The rows of an interval: each packet is in one row or in `rest`, rows are bounded, losses are counted."""

from __future__ import annotations

from dataclasses import replace

from tests.support import sample_packets as samples
from tracer.analysis.top.interval import MOST_ROWS, Interval, IntervalCounter, Losses, Measurement
from tracer.analysis.top.orders import ORDERS, rank
from tracer.analysis.top.row import MOST_FAILURES, MOST_PACKETS, MOST_WAYS, Row
from tracer.model.endpoints import Endpoints
from tracer.model.handshake import Cause, ConnectionAttempt, HandshakeVerdict
from tracer.model.loss import LEFT_OUT, Loss
from tracer.model.packet import Packet


def verdict(packet: Packet, name: str = "accepted", good: bool = True, *answers: Packet) -> HandshakeVerdict:
    attempt = ConnectionAttempt(packet, packet.hops[0].time, synacks=list(answers))
    return HandshakeVerdict(
        1, packet.time, packet.endpoints, packet.endpoints, packet.netns, Cause(name, name, good=good), attempt=attempt
    )


def counted(dimension: str, *packets: Packet) -> Interval:
    counter = IntervalCounter(dimension, Measurement())
    for packet in packets:
        counter.packet(packet)
    return counter.close(2.0, Losses())


def from_client(number: int) -> Packet:
    ends = Endpoints(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 40000, "192.168.56.10", 30285)
    return replace(samples.node_port(), endpoints=ends)


def test_more_clients_than_rows_are_counted_together() -> None:
    interval = counted("client", *map(from_client, range(MOST_ROWS + 50)))
    assert (len(interval.rows), interval.evicted, interval.rest.packets) == (MOST_ROWS, 50, 50)
    assert interval.total.packets == MOST_ROWS + 50
    ranking = rank(interval, "packets", 20)
    assert sum(row.packets for _, row in ranking.rows) + ranking.other.packets == MOST_ROWS + 50
    assert ranking.others == MOST_ROWS - 20 + 1


def test_a_row_keeps_few_packets_and_ways() -> None:
    row = Row()
    for number in range(100):
        row.add(samples.node_port(), [((f"a{number}", "b"), 5)], 10)
        row.add(samples.rejected(), [], None)
    assert (row.packets, row.drops, row.whole.count) == (200, 100, 100)
    assert (len(row.newest), len(row.failures), len(row.ways)) == (MOST_PACKETS, MOST_FAILURES, MOST_WAYS)


def test_sorted_by_each_figure() -> None:
    interval = counted("reason", samples.node_port(), samples.node_port(), samples.rejected(), samples.full_queue())
    assert next(key for key, _ in rank(interval, "packets", 9).rows) == "not dropped"
    assert [key for key, _ in rank(interval, "drops", 9).rows][-1] == "not dropped"
    assert [key for key, _ in rank(interval, "time", 1).rows] == ["accept queue full"]
    for order in ORDERS:
        assert len(rank(interval, order, 9).rows) == 3


def test_syns_by_row_and_by_cause() -> None:
    answer = samples.node_port_reply()
    late = replace(answer, hops=(replace(answer.hops[0], time=samples.BOOT + 400_000),))
    for dimension, keys in (("service", {"unknown"}), ("cause", {"accepted", "no answer", "not known"})):
        counter = IntervalCounter(dimension, Measurement())
        counter.packet(samples.node_port())
        counter.syn(verdict(samples.node_port(), "accepted", True, late))
        counter.syn(verdict(samples.node_port(), "no answer", False))
        counter.syn(verdict(samples.node_port(), "not known", False))
        interval = counter.close(2.0, Losses())
        total = interval.total
        assert set(interval.rows) == keys
        assert (total.good, total.failed, total.unsettled, total.syns) == (1, 1, 1, 3)
        assert total.syn_ack.count == 1 and total.syn_ack.most == 400_000
        assert total.packets == (3 if dimension == "cause" else 1), "by cause the packets are the SYNs"


def test_losses_of_the_interval_and_since_the_start() -> None:
    counter = IntervalCounter("service", Measurement())
    counter.lost(Loss(LEFT_OUT, -1, 7, "full"))
    counter.lost(Loss("table", 0, 3, "full"))
    interval = counter.close(2.0, Losses(1, 2, 0), unexplained=5)
    assert interval.losses == Losses(3, 7, 5) and interval.so_far == Losses(4, 9, 5)
    assert interval.lost_by_probe == {LEFT_OUT: 7, "table": 3}


def test_an_owner_that_changes_is_not_hidden() -> None:
    row = Row()
    for owner in ("unknown", "pod a/b", "unknown", "pod a/b"):
        row.add_owner(owner)
    assert row.owner == "pod a/b"
    for owner in ("pod a/c", "pod a/d"):
        row.add_owner(owner)
    assert row.owner == "pod a/b, and others"
