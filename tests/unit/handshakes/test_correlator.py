# SPDX-License-Identifier: Apache-2.0
"""Which packets answer which SYN, and when its verdict may be told."""

from __future__ import annotations

import pytest

from tests.support.syns import (
    ASKED,
    HALF,
    INSIDE,
    MS,
    SEQ,
    FakeSpaces,
    at_listener,
    decision_detail,
    last_ack,
    packet,
    syn,
    synack,
    verdicts,
    way,
)
from tracer.handshakes import correlator
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.handshakes.correlator import ANSWER_NS, NEIGHBOUR_NS, HandshakeCorrelator, ends_of
from tracer.model.handshake import ConnectionAttempt
from tracer.model.packet import Drop, Endpoints, Hop

SECOND = 1_000_000_000


@pytest.fixture
def read() -> list[ConnectionAttempt]:
    return []


@pytest.fixture
def open_(read: list[ConnectionAttempt]) -> HandshakeCorrelator:
    return HandshakeCorrelator(read.append)


def test_ends_of_a_packet_are_all_it_ever_had() -> None:
    assert ends_of(syn()) == {ASKED, HALF, INSIDE}
    assert ends_of(synack()) == {ASKED.reversed, HALF.reversed, INSIDE.reversed}


def test_an_answered_syn_waits_for_the_last_ack(open_: HandshakeCorrelator, read: list[ConnectionAttempt]) -> None:
    open_.feed(syn(*at_listener(True)))
    open_.feed(synack())
    open_.expire(200 * MS)
    assert not read and len(open_) == 1
    open_.feed(last_ack())
    open_.expire(201 * MS)
    (one,) = read
    assert ([p.tcp_flags for p in one.synacks], [p.tcp_flags for p in one.acks]) == (["SYN ACK"], ["ACK"])
    assert not len(open_) and not open_._by_next_seq and not open_._by_ends and not open_._ends


def test_a_dropped_syn_is_told_at_once(open_: HandshakeCorrelator, read: list[ConnectionAttempt]) -> None:
    open_.feed(syn(*at_listener(False, accept_queue=129)))
    open_.expire(30)
    assert len(read) == 1


def test_no_answer_is_told_after_a_second(open_: HandshakeCorrelator, read: list[ConnectionAttempt]) -> None:
    open_.feed(syn())
    open_.expire(ANSWER_NS)
    assert not read
    open_.expire(2 * ANSWER_NS)
    assert len(read) == 1


def test_a_syn_that_waits_for_its_next_hop_has_more_time(open_: HandshakeCorrelator, read: list[ConnectionAttempt]) -> None:
    """The drop comes seconds later, as a second part of the same packet."""
    open_.feed(syn(decision_detail("neighbour", 9, "node")))
    open_.expire(3 * SECOND)
    assert not read
    gone = Hop(3 * SECOND, "drop", "node", drop=Drop("NEIGH_FAILED", "arp_error_report"))
    open_.feed(packet(INSIDE, "SYN", [gone], seq=SEQ))
    open_.expire(3 * SECOND + 1)
    (one,) = read
    assert one.syn.drop and one.syn.drop.reason == "NEIGH_FAILED" and len(one.syn.hops) == len(way()) + 2
    late = HandshakeCorrelator(read.append)
    late.feed(syn(decision_detail("neighbour", 9, "node")))
    late.expire(2 * NEIGHBOUR_NS)
    assert len(read) == 2


def test_the_same_number_of_another_connection_is_no_answer(open_: HandshakeCorrelator, read: list[ConnectionAttempt]) -> None:
    open_.feed(syn())
    other = Endpoints("10.9.9.9", 80, "10.8.8.8", 4000)
    open_.feed(packet(other, "SYN ACK", [Hop(9, "hook", "node", "FORWARD")], 5, ack=SEQ + 1))
    open_.expire(2 * ANSWER_NS)
    assert read[0].synacks == []


def test_an_answer_belongs_to_the_latest_try_before_it(open_: HandshakeCorrelator, read: list[ConnectionAttempt]) -> None:
    open_.feed(syn())
    open_.feed(syn(at=SECOND, identity=2))
    open_.feed(synack(at=SECOND + 5 * MS, identity=3))
    open_.flush()
    assert [(a.again, len(a.synacks)) for a in read] == [(0, 0), (1, 1)]


def test_the_oldest_is_told_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch, read: list[ConnectionAttempt]) -> None:
    monkeypatch.setattr(correlator, "MAX_ATTEMPTS", 3)
    open_ = HandshakeCorrelator(read.append)
    for n in range(5):
        open_.feed(syn(identity=n + 1, seq=n, at=n))
    assert [a.syn.identity for a in read] == [1, 2]
    assert open_.early == 2 and len(open_) == 3


def test_later_segments_of_a_connection_are_nobodys(open_: HandshakeCorrelator, read: list[ConnectionAttempt]) -> None:
    for each in (syn(*at_listener(True)), synack(), last_ack()):
        open_.feed(each)
    open_.expire(SECOND)
    open_.feed(packet(ASKED, "PSH ACK", way(9 * MS), 7, seq=SEQ + 1, ack=7001))
    assert len(read) == 1 and len(read[0].acks) == 1


def test_a_syn_that_comes_out_of_a_tunnel_is_the_same_syn() -> None:
    """Seen again in another namespace and buffer: one verdict, from all of its way."""
    later = packet(INSIDE, "SYN", [Hop(9, "hook", "node-2", "INPUT", in_iface="vxlan0"), *at_listener(True, 10)], 2, seq=SEQ)
    (verdict,) = verdicts(syn(), later)
    assert verdict.cause.name == "half-open" and verdict.again == 0
    assert len(verdicts(syn(), syn(at=SECOND, identity=2))) == 2, "sent again, it begins where it began"


def test_the_rest_of_a_syn_that_was_told_is_no_other_syn() -> None:
    late = syn(Hop(3 * SECOND, "drop", "node", drop=Drop("QDISC_DROP", "f")), at=3 * SECOND)
    late.continues = 1
    syns = HandshakeAnalyzer(FakeSpaces())
    syns.feed(syn())
    assert len(syns.expire(2 * SECOND)) == 1
    syns.feed(late)
    assert syns.flush() == []
