# SPDX-License-Identifier: Apache-2.0
"""A run's verdicts and timelines: when they are written, in which form, and what the totals say."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

from tests.support.ctnetlink import REMOVED, TOLD, Heard, message
from tests.support.syns import ASKED, MS, FakeSpaces, at_listener, last_ack, packet, syn, synack, way
from tracer.connections.change_log import ChangeLog
from tracer.connections.tracker import ConnectionTracker
from tracer.findings import Findings
from tracer.findings.context import FindingContext
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.model.packet import Endpoints, Flow, Hop, Packet
from tracer.model.summary import RunSummary
from tracer.pipeline import connection_stage
from tracer.pipeline.connection_stage import ConnectionStage
from tracer.render.base import Output
from tracer.render.json import JsonOutput
from tracer.render.text import TextOutput

SECOND = 1_000_000_000


def written(of: ConnectionStage, *packets: Any, output: type[Output] = TextOutput) -> tuple[str, RunSummary]:
    """All that is written of these packets, and the totals."""
    out, totals = io.StringIO(), RunSummary()
    form = output(out, io.StringIO())
    for each in packets:
        of.feed(each)
        of.expire(each.hops[-1].time + SECOND // 5, form)
    of.flush(totals, form)
    return out.getvalue(), totals


def test_a_line_for_each_syn() -> None:
    text, totals = written(ConnectionStage(HandshakeAnalyzer(FakeSpaces())), syn(*at_listener(True)), synack(), last_ack())
    (line,) = text.strip().splitlines()
    assert "SYN 192.168.56.1:40812 -> 192.168.56.10:30285" in line
    assert "accepted by nginx (pid 4242) in pod-a, accept queue 0/128  after 5.00 ms" in line
    assert totals.causes == {"accepted": 1} and totals.timelines == {}


def test_only_what_went_wrong() -> None:
    of = ConnectionStage(HandshakeAnalyzer(FakeSpaces()), drops_only=True)
    text, totals = written(of, syn(*at_listener(True)), synack(), last_ack(), syn(at=SECOND, identity=9, seq=5))
    (line,) = text.strip().splitlines()
    assert line.endswith("should have answered  (derived)") and sum(totals.causes.values()) == 2


def test_by_connection_the_verdict_is_a_step() -> None:
    of = ConnectionStage(HandshakeAnalyzer(FakeSpaces()), ConnectionTracker())
    assert of.by_connection
    text, totals = written(of, syn(*at_listener(True)), synack(), last_ack())
    head, *lines = text.strip().splitlines()
    assert "TCP 192.168.56.1:40812 -> 192.168.56.10:30285  accepted, open  3 packets  tracked in node  (the run ended)" in head
    marks = [line[14:16] for line in lines if line[14:15] not in ("|", "`")]
    assert marks == ["->", "<-", "==", "->"]
    assert any("== accepted by nginx" in line for line in lines)
    assert totals.timelines == {"timelines": 1}


def test_json() -> None:
    by_packet, _ = written(ConnectionStage(HandshakeAnalyzer(FakeSpaces())), syn(), output=JsonOutput)
    (told,) = map(json.loads, by_packet.splitlines())
    assert (told["type"], told["cause"], told["good"], told["evidence"]) == ("syn", "no answer", False, "derived")
    assert told["asked"] == {"src": "192.168.56.1", "sport": 40812, "dst": "192.168.56.10", "dport": 30285}
    by_connection, _ = written(ConnectionStage(HandshakeAnalyzer(FakeSpaces()), ConnectionTracker()), syn(), output=JsonOutput)
    (told,) = map(json.loads, by_connection.splitlines())
    assert told["type"] == "timeline" and [s["what"] for s in told["steps"]] == ["packet", "verdict"]
    assert told["steps"][0]["stages"][0]["text"].startswith("PREROUTING DNAT")


def test_what_conntrack_says_waits_for_the_packet_it_is_of() -> None:
    mine, stranger = (message(*TOLD, protocol=protocol, orig=ASKED, zone=0) for protocol in (6, 17))
    of = ConnectionStage(HandshakeAnalyzer(FakeSpaces()), ConnectionTracker(), conntrack=Heard((1, mine), (1, stranger)))
    out, totals = io.StringIO(), RunSummary()
    form = TextOutput(out, out)
    of.expire(2, form)
    assert len(of._held) == 2
    of.feed(syn())
    of.expire(3, form)
    assert len(of._held) == 1
    of.expire(1 + connection_stage.HOLD_NS, form)
    assert not of._held, "nobody asked for that connection"
    of.flush(totals, form)
    assert "## conntrack entry created assured, SYN_SENT, 120 s" in out.getvalue()


def test_replaced_rules_stand_between_packets() -> None:
    changes = ChangeLog()
    of = ConnectionStage(HandshakeAnalyzer(FakeSpaces()), ConnectionTracker(), changes)
    changes.rules(3 * MS, "nat")
    text, _ = written(of, syn(*at_listener(True)), synack())
    assert "+3.00 ms  %% an unknown program replaced nat" in text


def test_a_finding_comes_with_the_verdict_that_shows_it() -> None:
    findings = Findings(FindingContext())
    text, _ = written(
        ConnectionStage(HandshakeAnalyzer(FakeSpaces()), findings=findings), syn(*at_listener(False, accept_queue=129))
    )
    assert "accept queue full 129/128" in text and "FINDING syn_dropped" in text
    assert [f.name for f in findings.all] == ["syn_dropped"]


def test_who_removed_an_entry_is_said() -> None:
    gone = message(*REMOVED, orig=ASKED, zone=0, port=77)
    of = ConnectionStage(
        HandshakeAnalyzer(FakeSpaces()), ConnectionTracker(), conntrack=Heard((3 * MS, gone), names={77: "conntrack (pid 77)"})
    )
    text, _ = written(of, syn(*at_listener(True)), synack())
    assert "## conntrack entry removed by conntrack (pid 77)" in text


def test_why_there_are_no_events_is_said_to_those_who_asked_for_them() -> None:
    err = io.StringIO()
    for connections in (ConnectionTracker(), None):
        heard = Heard(why="conntrack's events are not told: so")
        with ConnectionStage(HandshakeAnalyzer(FakeSpaces()), connections, conntrack=heard) as of:
            of.start(TextOutput(io.StringIO(), err))
        assert heard.listens == (connections is not None)
    assert err.getvalue() == "Conntrack's events are not told: so.\n"


def test_the_summary_compares_counters() -> None:
    spaces = FakeSpaces()
    of = ConnectionStage(HandshakeAnalyzer(spaces))
    spaces.counted = {"ListenDrops": 2, "ListenOverflows": 1}
    _, totals = written(of, syn(*at_listener(False, accept_queue=129)))
    out = io.StringIO()
    TextOutput(out, out).summary(totals)
    assert "  1 SYN: 1 accept queue full\n" in out.getvalue()
    assert "ListenOverflows in pod-a: 1 counted, 1 explained\n" in out.getvalue()
    assert "ListenDrops in pod-a: 2 counted, 1 explained; 1 were packets" in out.getvalue()


def test_a_verdict_whose_timeline_is_gone_is_a_line() -> None:
    """Every SYN is told, also where its connection had to make room before."""
    of = ConnectionStage(HandshakeAnalyzer(FakeSpaces()), ConnectionTracker(max_timelines=1))
    other = replace(ASKED, sport=50000)
    later = packet(
        other, "SYN", [replace(h, nat=None) for h in way(SECOND)], 9, seq=77, flow=Flow(other, other.reversed, "NEW", False, 0)
    )
    text, totals = written(of, syn(), later)
    assert "removed because the table is full" in text and totals.timelines["aged out"] == 1
    assert "SYN 192.168.56.1:40812 -> 192.168.56.10:30285" in text, "a line of its own"
    assert "SYN 192.168.56.1:50000" not in text and "== left by cni0" in text, "a step of its timeline"


def test_only_troubled_connections() -> None:
    of = ConnectionStage(HandshakeAnalyzer(FakeSpaces()), ConnectionTracker(), drops_only=True)
    text, _ = written(of, syn(*at_listener(True)), synack(), last_ack(), syn(at=SECOND, identity=9, seq=5))
    assert text.count("TCP 192.168.56.1:40812") == 1 and "  no answer  1 packet" in text


def test_neighbour_discovery_is_no_connection() -> None:
    of = ConnectionStage(HandshakeAnalyzer(FakeSpaces()), ConnectionTracker())
    ends = Endpoints("fd00:56::1", 0, "ff02::1:ff00:10", 0)
    ask = Packet(
        1, 0, "node", "eth0", "IPv6", "ICMPv6", ends, hops=[Hop(0, "hook", "node")], outcome="delivered", icmp=(135, 0)
    )
    assert written(of, ask)[0] == ""
    text, _ = written(of, replace(ask, outcome="dropped", verdict="DROPPED in ip6_mc_input"))
    assert "DROPPED in ip6_mc_input" in text, "what goes wrong is told of any packet"
