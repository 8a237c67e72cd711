# SPDX-License-Identifier: Apache-2.0
"""Which packets answer which SYN, and when an attempt is closed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.syns import (
    AFTER_DNAT,
    INSIDE,
    MS,
    REQUESTED,
    SEQ,
    FakeInspector,
    at_listener,
    decision_detail,
    last_ack,
    packet,
    syn,
    synack,
    verdicts,
    way,
)
from tracer.handshakes import correlator as correlator_module
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.handshakes.correlator import ANSWER_NS, NEIGHBOUR_NS, HandshakeCorrelator
from tracer.model.connection import make_alias, reverse
from tracer.model.endpoints import Endpoints
from tracer.model.handshake import ConnectionAttempt
from tracer.model.hop import Drop, DropHop, HookHop
from tracer.model.namespace_name import HOST, NO_NETNS, Netns
from tracer.model.netfilter import Hook
from tracer.model.packet import Flow, Packet
from tracer.packets.aliases import Aliases

SECOND = 1_000_000_000


@pytest.fixture
def closed() -> list[ConnectionAttempt]:
    return []


@pytest.fixture
def correlator(closed: list[ConnectionAttempt]) -> HandshakeCorrelator:
    return HandshakeCorrelator(closed.append)


def test_ends_of_a_packet_include_those_before_and_after_translation() -> None:
    there = {make_alias(NO_NETNS, "TCP", ends) for ends in (REQUESTED, AFTER_DNAT, INSIDE)}
    assert Aliases().ends(syn()) == there
    assert Aliases().ends(synack()) == {reverse(alias) for alias in there}


def test_an_answered_syn_waits_for_the_last_ack(correlator: HandshakeCorrelator, closed: list[ConnectionAttempt]) -> None:
    correlator.feed(syn(*at_listener(True)))
    correlator.feed(synack())
    correlator.expire(200 * MS)
    assert not closed and len(correlator) == 1
    correlator.feed(last_ack())
    correlator.expire(201 * MS)
    (one,) = closed
    assert ([p.tcp_flags for p in one.synacks], [p.tcp_flags for p in one.acks]) == (["SYN ACK"], ["ACK"])
    assert not len(correlator) and not correlator._by_next_seq and not correlator._by_alias


def test_a_dropped_syn_is_closed_at_once(correlator: HandshakeCorrelator, closed: list[ConnectionAttempt]) -> None:
    correlator.feed(syn(*at_listener(False, accept_queue=129)))
    correlator.expire(30)
    assert len(closed) == 1


def test_an_unanswered_syn_is_closed_after_a_second(correlator: HandshakeCorrelator, closed: list[ConnectionAttempt]) -> None:
    correlator.feed(syn())
    correlator.expire(ANSWER_NS)
    assert not closed
    correlator.expire(2 * ANSWER_NS)
    assert len(closed) == 1


def test_a_syn_that_waits_for_its_next_hop_has_more_time(
    correlator: HandshakeCorrelator, closed: list[ConnectionAttempt]
) -> None:
    """The drop comes seconds later, as a second part of the same packet."""
    seen = syn(decision_detail("neighbour", 9, HOST))
    before = replace(seen)
    correlator.feed(seen)
    correlator.expire(3 * SECOND)
    assert not closed
    gone = DropHop(3 * SECOND, HOST, drop=Drop("NEIGH_FAILED", "arp_error_report"))
    correlator.feed(packet(INSIDE, "SYN", [gone], seq=SEQ))
    correlator.expire(3 * SECOND + 1)
    (one,) = closed
    assert one.syn.drop and one.syn.drop.reason == "NEIGH_FAILED" and len(one.syn.hops) == len(way()) + 2
    assert seen == before, "the packet that was emitted does not change"
    late = HandshakeCorrelator(closed.append)
    late.feed(syn(decision_detail("neighbour", 9, HOST)))
    late.expire(2 * NEIGHBOUR_NS)
    assert len(closed) == 2


def test_the_same_number_of_another_connection_is_no_answer(
    correlator: HandshakeCorrelator, closed: list[ConnectionAttempt]
) -> None:
    correlator.feed(syn())
    other = Endpoints("10.9.9.9", 80, "10.8.8.8", 4000)
    correlator.feed(packet(other, "SYN ACK", [HookHop(9, HOST, Hook.FORWARD)], 5, ack=SEQ + 1))
    correlator.expire(2 * ANSWER_NS)
    assert closed[0].synacks == []


def test_an_answer_belongs_to_the_latest_try_before_it(
    correlator: HandshakeCorrelator, closed: list[ConnectionAttempt]
) -> None:
    correlator.feed(syn())
    correlator.feed(syn(at=SECOND, identity=2))
    correlator.feed(synack(at=SECOND + 5 * MS, identity=3))
    correlator.flush()
    assert [(a.again, len(a.synacks)) for a in closed] == [(0, 0), (1, 1)]


def test_the_oldest_is_closed_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch, closed: list[ConnectionAttempt]) -> None:
    monkeypatch.setattr(correlator_module, "MAX_ATTEMPTS", 3)
    correlator = HandshakeCorrelator(closed.append)
    for n in range(5):
        correlator.feed(syn(identity=n + 1, seq=n, at=n))
    assert [a.syn.identity for a in closed] == [1, 2]
    assert correlator.early == 2 and len(correlator) == 3


def test_an_icmp_error_belongs_to_the_syn_of_its_zone_and_namespace(
    correlator: HandshakeCorrelator, closed: list[ConnectionAttempt]
) -> None:
    correlator.feed(syn(*at_listener(None)))
    pod_a, pod_b = Netns("pod-a"), Netns("pod-b")
    for at, (orig, zone, netns) in enumerate(
        [(REQUESTED, 7, HOST), (REQUESTED, 0, pod_b), (REQUESTED, 0, pod_a), (REQUESTED, 0, HOST), (INSIDE, 0, pod_a)]
    ):
        flow = Flow(orig, INSIDE.reversed, "RELATED", True, zone, netns)
        ends = Endpoints("10.9.0.1", 0, "192.168.56.1", 0)
        hops = (HookHop(at, netns),)
        correlator.feed(Packet(at + 5, at, netns, "eth1", "IPv4", "ICMP", ends, flow=flow, hops=hops, icmp=(3, 1)))
    correlator.flush()
    assert [(e.flow.orig, e.flow.netns) for e in closed[0].errors if e.flow] == [(REQUESTED, "node"), (INSIDE, "pod-a")]


def test_an_icmp_error_after_a_tunnel(correlator: HandshakeCorrelator, closed: list[ConnectionAttempt]) -> None:
    """It quotes the SYN as the second namespace has it."""
    correlator.feed(syn())
    correlator.feed(packet(INSIDE, "SYN", [HookHop(9, Netns("node-2"), Hook.FORWARD, in_iface="vxlan0")], 2, seq=SEQ))
    flow = Flow(INSIDE, INSIDE.reversed, "RELATED", True, 0, Netns("node-2"))
    ends = Endpoints("10.9.0.1", 0, "192.168.56.1", 0)
    correlator.feed(
        Packet(
            5, 10, Netns("node-2"), "eth1", "IPv4", "ICMP", ends, flow=flow, hops=(HookHop(10, Netns("node-2")),), icmp=(3, 1)
        )
    )
    correlator.flush()
    assert len(closed) == 1 and len(closed[0].errors) == 1


def test_a_syn_that_is_closed_early_is_not_called_unanswered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer may still come: only its own way is known."""
    monkeypatch.setattr(correlator_module, "MAX_ATTEMPTS", 2)
    analyzer = HandshakeAnalyzer(FakeInspector())
    for n in range(4):
        analyzer.feed(syn(identity=n + 1, seq=n, at=n))
    early = analyzer.expire(10)
    late = analyzer.expire(2 * ANSWER_NS)
    assert [v.cause.name for v in (*early, *late)] == ["not known", "not known", "no answer", "no answer"]
    assert early[0].cause.text.startswith("not known, its answer was not awaited: too many SYNs were open")


def test_a_half_open_connection_that_is_closed_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlator_module, "MAX_ATTEMPTS", 1)
    analyzer = HandshakeAnalyzer(FakeInspector())
    analyzer.feed(syn(*at_listener(True)))
    analyzer.feed(syn(identity=9, seq=9, at=20))
    (verdict,) = analyzer.expire(10)
    assert "the client's ACK was not awaited: too many SYNs were open" in verdict.cause.text


def test_a_dropped_syn_that_is_closed_early_has_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correlator_module, "MAX_ATTEMPTS", 1)
    analyzer = HandshakeAnalyzer(FakeInspector())
    for n in range(2):
        analyzer.feed(syn(*at_listener(False, accept_queue=129), identity=n + 1, seq=n, at=n))
    assert [v.cause.name for v in analyzer.expire(10)] == ["accept queue full"] * 2


def test_answers_to_one_syn_are_bounded(
    monkeypatch: pytest.MonkeyPatch, correlator: HandshakeCorrelator, closed: list[ConnectionAttempt]
) -> None:
    """Someone can send any number of SYN-ACKs. After some were left out, a missing answer proves nothing."""
    monkeypatch.setattr(correlator_module, "MAX_ANSWERS", 3)
    correlator.feed(syn())
    for n in range(10):
        correlator.feed(synack(identity=2 + n))
    correlator.flush()
    (one,) = closed
    assert (len(one.synacks), one.limited, one.doubtful) == (3, True, True)


def test_addresses_of_one_syn_are_bounded(
    monkeypatch: pytest.MonkeyPatch, correlator: HandshakeCorrelator, closed: list[ConnectionAttempt]
) -> None:
    """After some were left out, a missing answer proves nothing."""
    monkeypatch.setattr(correlator_module, "MAX_ALIASES", 4)
    correlator.feed(syn())
    for n in range(10):
        correlator.feed(packet(INSIDE, "SYN", [HookHop(9 + n, Netns(f"node-{n}"), in_iface="vxlan0")], 2 + n, seq=SEQ))
    assert len(correlator._by_alias) <= 6
    correlator.flush()
    (one,) = closed
    assert one.limited and one.doubtful and not correlator._by_alias


def test_later_segments_of_a_connection_belong_to_no_syn(
    correlator: HandshakeCorrelator, closed: list[ConnectionAttempt]
) -> None:
    for each in (syn(*at_listener(True)), synack(), last_ack()):
        correlator.feed(each)
    correlator.expire(SECOND)
    correlator.feed(packet(REQUESTED, "PSH ACK", way(9 * MS), 7, seq=SEQ + 1, ack=7001))
    assert len(closed) == 1 and len(closed[0].acks) == 1


def test_a_syn_that_comes_out_of_a_tunnel_is_the_same_syn() -> None:
    """It is seen again in another namespace and buffer: one verdict, from its whole path."""
    later = packet(
        INSIDE, "SYN", [HookHop(9, Netns("node-2"), Hook.INPUT, in_iface="vxlan0"), *at_listener(True, 10)], 2, seq=SEQ
    )
    (verdict,) = verdicts(syn(), later)
    assert verdict.cause.name == "half-open" and verdict.again == 0
    assert len(verdicts(syn(), syn(at=SECOND, identity=2))) == 2, "a retransmission starts where the first SYN started"


def test_the_rest_of_a_closed_syn_is_no_second_syn() -> None:
    late = syn(DropHop(3 * SECOND, HOST, drop=Drop("QDISC_DROP", "f")), at=3 * SECOND, continues=1)
    analyzer = HandshakeAnalyzer(FakeInspector())
    analyzer.feed(syn())
    assert len(analyzer.expire(2 * SECOND)) == 1
    analyzer.feed(late)
    assert analyzer.flush() == []
