# SPDX-License-Identifier: Apache-2.0
"""Verdicts of a run: one for each SYN, numbered in the order of their decision, with the delay of the first answer."""

from __future__ import annotations

from dataclasses import replace

from tests.support.syns import INSIDE, MS, REQUESTED, FakeInspector, at_listener, last_ack, packet, syn, synack, way
from tracer.handshakes.analyzer import HandshakeAnalyzer

SECOND = 1_000_000_000


def test_every_syn_has_exactly_one_verdict() -> None:
    analyzer = HandshakeAnalyzer(FakeInspector(), wall_offset=100 * SECOND)
    for each in (syn(*at_listener(True)), synack(), syn(at=SECOND, identity=9, seq=77)):
        analyzer.feed(each)
    assert analyzer.expire(2 * MS) == []
    analyzer.feed(last_ack())
    (first,) = analyzer.expire(SECOND)
    assert (first.number, first.time, first.after, first.netns) == (1, 100 * SECOND, 5 * MS, "node")
    assert (first.asked, first.reached) == (REQUESTED, INSIDE)
    (second,) = analyzer.expire(4 * SECOND)
    assert (second.number, second.time, second.after) == (2, 101 * SECOND, 0)
    assert analyzer.flush() == [] and analyzer.early == 0
    assert analyzer.by_cause == {"accepted": 1, "no answer": 1}


def test_a_lost_packet_may_have_been_the_answer() -> None:
    analyzer = HandshakeAnalyzer(FakeInspector())
    analyzer.feed(syn())
    analyzer.add_loss(SECOND // 2)
    analyzer.feed(syn(*at_listener(True), identity=8, seq=66))
    analyzer.feed(syn(at=SECOND, identity=9, seq=77))
    lost, answered, unanswered = analyzer.expire(4 * SECOND)
    assert lost.cause.name == "not known" and "packets were lost while its answer was awaited" in lost.cause.text
    assert (
        answered.cause.name == "half-open" and "the client's ACK was not seen, while packets were lost" in answered.cause.text
    )
    assert unanswered.cause.name == "no answer", "it was sent after the loss"


def test_other_packets_have_no_verdict() -> None:
    analyzer = HandshakeAnalyzer(FakeInspector())
    analyzer.feed(packet(REQUESTED, "PSH ACK", way()))
    analyzer.feed(replace(packet(REQUESTED, "", way(), 2), protocol="UDP"))
    assert analyzer.flush() == [] and not analyzer.by_cause


def test_differences_are_those_of_the_run() -> None:
    spaces = FakeInspector()
    analyzer = HandshakeAnalyzer(spaces)
    analyzer.feed(syn(*at_listener(False, accept_queue=129)))
    spaces.fake.counted = {"ListenDrops": 1}
    assert [(d.netns, d.counter, d.open) for d in analyzer.differences()] == [
        ("node", "ListenDrops", 1),
        ("pod-a", "ListenDrops", 0),
    ]
