# SPDX-License-Identifier: Apache-2.0
"""The sink of the screen: it never waits, counts everything, and holds no snapshot of rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import sample_packets as samples
from tests.support.sample_findings import FOUND
from tests.support.screens import numbered, recorded_feed
from tracer.model.check import CheckResult
from tracer.model.evidence import Evidence
from tracer.model.hop import trace_of
from tracer.model.loss import LEFT_OUT, Loss
from tracer.model.packet import Packet
from tracer.model.rule import RuleHit, RuleLocation, Ruleset, RuleTrace
from tracer.model.summary import RunSummary
from tracer.packets.joined_views import first_packet
from tracer.packets.shared_path import HopPattern, PathHops, SharedPath
from tracer.ui import feed as module
from tracer.ui.feed import ScreenFeed


def test_everything_is_counted() -> None:
    feed = ScreenFeed()
    for packet in samples.every():
        feed.packet(packet)
    feed.packet(replace(samples.ping(), unexplained=Evidence.OBSERVED))
    feed.finding(FOUND)
    feed.lost(Loss("hook", 0, 17, "so"))
    feed.lost(Loss(LEFT_OUT, 0, 4, "so"))
    counts = feed.counts
    assert (counts.packets, counts.bad, counts.incomplete, counts.unexplained) == (6, 3, 1, 1)
    assert (counts.findings, counts.lost, counts.left_out) == (1, 17, 4)
    assert feed.lost_by_probe == {"hook": 17, LEFT_OUT: 4} and len(feed.packets) == 7


def test_a_screen_that_takes_nothing_loses_the_oldest_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 100)
    feed, packets = ScreenFeed(), numbered(250)
    for packet in packets:
        feed.packet(packet)
    assert feed.packets.evicted == 150 and feed.packets.read() == packets[150:] and feed.counts.packets == 250


def test_notes_are_bounded() -> None:
    feed = ScreenFeed()
    feed.begin([CheckResult("a", "degraded", "so"), CheckResult("b", "ok", "so")], "--port 80", "6.12.0")
    for number in range(100):
        feed.note(str(number))
    assert feed.notes.read() == [str(number) for number in range(36, 100)] and feed.title == "--port 80"


def test_the_summary_brings_the_findings_in_their_final_state() -> None:
    feed, summary = ScreenFeed(), RunSummary(findings=[FOUND])
    feed.summary(summary)
    assert feed.findings.read() == [("", FOUND)] and feed.totals is summary and feed.counts.findings == 0
    error = OSError("so")
    feed.end(error)
    assert feed.ended.is_set() and feed.error is error


def with_ruleset(packet: Packet) -> Packet:
    """The packet with a rule trace that holds a snapshot of all rules."""
    hit = RuleHit((RuleLocation("INPUT", 1),), None, "DROP", Evidence.OBSERVED)
    return samples.with_hop(packet, 0, rule_trace=RuleTrace((hit,), ruleset=Ruleset("nft", 1, "1", {})))


def test_a_kept_packet_has_no_snapshot_of_rules() -> None:
    feed, packet = ScreenFeed(), with_ruleset(samples.node_port())
    before = trace_of(packet.hops[0])
    path = SharedPath(tuple(HopPattern(hop, 0, -1, -1, -1, -1) for hop in packet.hops[:2]), ())
    shared = replace(packet, hops=PathHops(path, [packet.hops[0].time], (0, 0), (), ()))
    feed.packet(packet)
    feed.packet(shared)
    feed.packet(shared)
    found = [first_packet(each) for each in feed.packets.read()]
    for each in found:
        trace = trace_of(each.hops[0])
        assert before and before.ruleset and trace and trace.ruleset is None and trace.hits == before.hits
    one, other = (each.hops for each in found[1:])
    assert isinstance(one, PathHops) and isinstance(other, PathHops) and one.path is other.path, "made once for a path"
    assert one == shared.hops[:2] or [hop.time for hop in one] == [hop.time for hop in shared.hops]


def test_packets_of_a_recorded_node_are_those_of_the_run() -> None:
    feed = recorded_feed("J")
    assert feed.totals and feed.counts.packets == feed.totals.packets == len(feed.packets) - feed.counts.unexplained
    assert not any(
        (trace := trace_of(hop)) and trace.ruleset for packet in map(first_packet, feed.packets) for hop in packet.hops
    )
    assert any(first_packet(packet).connection for packet in feed.packets)
