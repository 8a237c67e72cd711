# SPDX-License-Identifier: Apache-2.0
"""A run's verdicts and timelines: when they are written, in which form, and their totals."""

from __future__ import annotations

import io
import json
import re
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from tests.support.ctnetlink import ADDED, REMOVED, FakeConntrack, message
from tests.support.syns import MS, REQUESTED, FakeInspector, at_listener, last_ack, packet, syn, synack, way
from tracer.connections import change_log, conntrack_events
from tracer.connections.change_log import ChangeLog
from tracer.connections.tracker import ConnectionTracker
from tracer.findings import Findings
from tracer.findings.context import FindingContext
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.model.endpoints import Endpoints
from tracer.model.hop import HookHop, RewriteHop
from tracer.model.namespace_name import HOST
from tracer.model.packet import Flow, Outcome, Packet
from tracer.model.summary import RunSummary
from tracer.pipeline import connection_stage
from tracer.pipeline.connection_stage import ConnectionStage
from tracer.render.base import Output
from tracer.render.json import JsonOutput
from tracer.render.text import TextOutput
from tracer.util.evictions import evictions

SECOND = 1_000_000_000


def written(stage: ConnectionStage, *packets: Any, output: type[Output] = TextOutput) -> tuple[str, RunSummary]:
    """The output for these packets, and the totals."""
    out, totals = io.StringIO(), RunSummary()
    form = output(out, io.StringIO())
    for each in packets:
        stage.feed(each, form)
        stage.end_batch(each.hops[-1].time + SECOND // 5, form)
    stage.flush(totals, form)
    return out.getvalue(), totals


def test_a_line_for_each_syn() -> None:
    text, totals = written(ConnectionStage(HandshakeAnalyzer(FakeInspector())), syn(*at_listener(True)), synack(), last_ack())
    (line,) = text.strip().splitlines()
    assert "SYN 192.168.56.1:40812 -> 192.168.56.10:30285" in line
    assert "accepted by nginx (pid 4242) in pod-a, accept queue 0/128  after 5.00 ms" in line
    assert totals.causes == {"accepted": 1} and totals.timelines == {}


def test_drops_only_prints_failed_syns() -> None:
    stage = ConnectionStage(HandshakeAnalyzer(FakeInspector()), failures_only=True)
    text, totals = written(stage, syn(*at_listener(True)), synack(), last_ack(), syn(at=SECOND, identity=9, seq=5))
    (line,) = text.strip().splitlines()
    assert line.endswith("should have answered  (derived)") and sum(totals.causes.values()) == 2


def test_by_connection_the_verdict_is_an_entry() -> None:
    stage = ConnectionStage(HandshakeAnalyzer(FakeInspector()), ConnectionTracker())
    text, totals = written(stage, syn(*at_listener(True)), synack(), last_ack())
    head, *lines = text.strip().splitlines()
    assert "TCP 192.168.56.1:40812 -> 192.168.56.10:30285  accepted, open  3 packets  tracked in node  (the run ended)" in head
    marks = [line[14:16] for line in lines if line[14:15] not in ("|", "`")]
    assert marks == ["->", "<-", "==", "->"]
    assert any("== accepted by nginx" in line for line in lines)
    assert totals.timelines == {"timelines": 1}


def test_verdicts_and_timelines_in_json() -> None:
    by_packet, _ = written(ConnectionStage(HandshakeAnalyzer(FakeInspector())), syn(), output=JsonOutput)
    (line,) = map(json.loads, by_packet.splitlines())
    assert (line["type"], line["cause"], line["good"], line["evidence"]) == ("syn", "no answer", False, "derived")
    assert line["asked"] == {"src": "192.168.56.1", "sport": 40812, "dst": "192.168.56.10", "dport": 30285}
    by_connection, _ = written(
        ConnectionStage(HandshakeAnalyzer(FakeInspector()), ConnectionTracker()), syn(), output=JsonOutput
    )
    (line,) = map(json.loads, by_connection.splitlines())
    assert line["type"] == "timeline" and [s["what"] for s in line["steps"]] == ["packet", "verdict"]
    assert line["steps"][0]["stages"][0]["text"].startswith("PREROUTING DNAT")


def test_a_conntrack_event_waits_for_a_packet_of_its_connection() -> None:
    mine, stranger = (message(*ADDED, protocol=protocol, orig=REQUESTED, zone=0) for protocol in (6, 17))
    stage = ConnectionStage(
        HandshakeAnalyzer(FakeInspector()), ConnectionTracker(), conntrack=FakeConntrack((1, mine), (1, stranger))
    )
    out, totals = io.StringIO(), RunSummary()
    form = TextOutput(out, out)
    stage.end_batch(2, form)
    assert len(stage._held) == 2
    stage.feed(syn(), form)
    stage.end_batch(3, form)
    assert len(stage._held) == 1
    stage.end_batch(1 + connection_stage.HOLD_NS, form)
    assert not stage._held, "no packet of that connection came"
    stage.flush(totals, form)
    assert "## conntrack entry created assured, SYN_SENT, 120 s" in out.getvalue()


def test_replaced_rules_are_shown_between_packets() -> None:
    changes = ChangeLog()
    stage = ConnectionStage(HandshakeAnalyzer(FakeInspector()), ConnectionTracker(), changes)
    changes.add_rule_change(3 * MS, "nat")
    text, _ = written(stage, syn(*at_listener(True)), synack())
    assert "+3.00 ms  %% an unknown program replaced nat" in text


def test_a_finding_is_printed_with_its_verdict() -> None:
    findings = Findings(FindingContext())
    text, _ = written(
        ConnectionStage(HandshakeAnalyzer(FakeInspector()), findings=findings), syn(*at_listener(False, accept_queue=129))
    )
    assert "accept queue full 129/128" in text and "FINDING syn_dropped" in text
    assert [f.name for f in findings.all] == ["syn_dropped"]


def test_the_process_that_removed_an_entry_is_named() -> None:
    event = message(*REMOVED, orig=REQUESTED, zone=0, port=77)
    stage = ConnectionStage(
        HandshakeAnalyzer(FakeInspector()),
        ConnectionTracker(),
        conntrack=FakeConntrack((3 * MS, event), names={77: "conntrack (pid 77)"}),
    )
    text, _ = written(stage, syn(*at_listener(True)), synack())
    assert "## conntrack entry removed by conntrack (pid 77)" in text


def test_missing_conntrack_events_are_reported_only_with_follow() -> None:
    err = io.StringIO()
    for connections in (ConnectionTracker(), None):
        listener = FakeConntrack(why="conntrack's events cannot be read: so")
        with closing(ConnectionStage(HandshakeAnalyzer(FakeInspector()), connections, conntrack=listener)) as stage:
            stage.begin(TextOutput(io.StringIO(), err))
        assert listener.listens == (connections is not None)
    assert err.getvalue() == "Conntrack's events cannot be read: so.\n"


def test_the_summary_compares_counters() -> None:
    spaces = FakeInspector()
    stage = ConnectionStage(HandshakeAnalyzer(spaces))
    spaces.fake.counted = {"ListenDrops": 2, "ListenOverflows": 1}
    _, totals = written(stage, syn(*at_listener(False, accept_queue=129)))
    out = io.StringIO()
    TextOutput(out, out).summary(totals)
    assert "  1 SYN: 1 accept queue full\n" in out.getvalue()
    assert "ListenOverflows in pod-a: 1 counted, 1 explained\n" in out.getvalue()
    assert "ListenDrops in pod-a: 2 counted, 1 explained; 1 were packets" in out.getvalue()


def test_a_verdict_without_its_timeline_is_a_line() -> None:
    """Every SYN is reported, also if its connection was removed from the full table before."""
    stage = ConnectionStage(HandshakeAnalyzer(FakeInspector()), ConnectionTracker(max_timelines=1))
    other = replace(REQUESTED, sport=50000)
    hops = [h for h in way(SECOND) if not isinstance(h, RewriteHop)]
    later = packet(other, "SYN", hops, 9, seq=77, flow=Flow(other, other.reversed, "NEW", False, 0))
    text, totals = written(stage, syn(), later)
    assert "removed because the table is full" in text and totals.timelines["aged out"] == 1
    assert "SYN 192.168.56.1:40812 -> 192.168.56.10:30285" in text, "a line of its own"
    assert "SYN 192.168.56.1:50000" not in text and "== left by cni0" in text, "an entry of its timeline"


def test_connections_that_are_written_together_are_in_the_order_of_their_beginnings() -> None:
    stage = ConnectionStage(HandshakeAnalyzer(FakeInspector()), ConnectionTracker())
    other = replace(syn(at=SECOND // 4, identity=9, seq=5), endpoints=Endpoints("192.168.56.2", 5, "192.168.56.10", 30285))
    text, _ = written(stage, syn(*at_listener(True)), replace(other, flow=None), synack(), last_ack())
    assert re.findall(r"TCP (\S+):\d+ ->", text) == ["192.168.56.1", "192.168.56.2"]


def test_drops_only_prints_failed_connections() -> None:
    stage = ConnectionStage(HandshakeAnalyzer(FakeInspector()), ConnectionTracker(), failures_only=True)
    text, _ = written(stage, syn(*at_listener(True)), synack(), last_ack(), syn(at=SECOND, identity=9, seq=5))
    assert text.count("TCP 192.168.56.1:40812") == 1 and "  no answer  1 packet" in text


def test_neighbor_discovery_is_no_connection() -> None:
    stage = ConnectionStage(HandshakeAnalyzer(FakeInspector()), ConnectionTracker())
    ends = Endpoints("fd00:56::1", 0, "ff02::1:ff00:10", 0)
    ask = Packet(
        1,
        0,
        HOST,
        "eth0",
        "IPv6",
        "ICMPv6",
        ends,
        hops=(HookHop(0, HOST),),
        outcome=Outcome.DELIVERED,
        icmp=(135, 0),
    )
    assert written(stage, ask)[0] == ""
    text, _ = written(stage, replace(ask, outcome=Outcome.DROPPED, verdict="DROPPED in ip6_mc_input"))
    assert "DROPPED in ip6_mc_input" in text, "a dropped packet is always reported"


def test_conntrack_events_without_a_packet_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conntrack_events, "MAX_EVENTS", 3)
    evictions.read()
    strangers = [(1, message(*ADDED, protocol=17, orig=replace(REQUESTED, sport=n), zone=0)) for n in range(10)]
    stage = ConnectionStage(HandshakeAnalyzer(FakeInspector()), ConnectionTracker(), conntrack=FakeConntrack(*strangers))
    stage.end_batch(2, TextOutput(io.StringIO(), io.StringIO()))
    assert [event.key.orig.sport for event, _ in stage._held] == [7, 8, 9]
    assert evictions.read()["conntrack events without a packet"] == 7


def test_lost_changes_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "MAX_ENTRIES", 3)
    changes, err = ChangeLog(), io.StringIO()
    stage = ConnectionStage(HandshakeAnalyzer(FakeInspector()), ConnectionTracker(), changes, conntrack=FakeConntrack())
    for n in range(10):
        changes.add_rule_change(n, "nat")
    form = TextOutput(io.StringIO(), err)
    stage.end_batch(20, form)
    stage.flush(RunSummary(), form)
    assert "7 changes of rules and objects were lost; timelines may lack some." in err.getvalue()
