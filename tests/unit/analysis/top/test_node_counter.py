# SPDX-License-Identifier: Apache-2.0
"""Packets of several nodes: each is one packet, each node has its times and its losses."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from importlib import resources
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from rich.console import Console

from tests.support import sample_packets as samples
from tests.support.node_views import ENDS, POD_A, POD_B, view
from tests.unit.analysis.top.test_interval import verdict
from tests.unit.analysis.top.test_packet_counter import Shown
from tracer import render
from tracer.analysis.top import drawing
from tracer.analysis.top.interval import Interval, Losses
from tracer.analysis.top.node_counter import NodesTopOutput
from tracer.analysis.top.printing import PrintedRecords, PrintedTables
from tracer.analysis.top.row import MOST_CAUSES, RowWay
from tracer.model.check import CheckResult
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.handshake import HandshakeVerdict
from tracer.model.joined_packet import Certainty, JoinedPacket, JoinKey, JoinLink, NodeView
from tracer.model.loss import LEFT_OUT, Loss
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary

VALIDATOR = Draft202012Validator(json.loads(resources.files(render).joinpath("schema.json").read_text(encoding="utf-8")))
LINK = JoinLink(0, 1, JoinKey.HEADER, Certainty.OBSERVED)
HOSTILE = "node\x1b[2J\n[bold]" + "x" * 300


def both(way: str = "in", **values: Any) -> JoinedPacket:
    """A packet from node a to node b. way: what happens to it there."""
    return JoinedPacket((view("a", 0, "out", **values), view("b", 1000, way, **values)), (LINK,))


def output(dimension: str = "service", *nodes: str) -> tuple[NodesTopOutput, Shown]:
    shown = Shown()
    shown.dimension = dimension
    made = NodesTopOutput(shown, math.inf, io.StringIO(), io.StringIO())
    made.open()
    for node in nodes or ("a", "b"):
        made.for_node(node).begin([], "")
    return made, shown


def counted(dimension: str, *joined: JoinedPacket) -> Interval:
    made, shown = output(dimension)
    for each in joined:
        made.joined(each)
    made.summary(RunSummary())
    return shown.intervals[0]


def syn_verdicts(joined: JoinedPacket, *causes: tuple[str, bool, int]) -> list[HandshakeVerdict]:
    """A verdict of each view."""
    return [
        replace(verdict(each.packet, name, good), after=after)
        for each, (name, good, after) in zip(joined.views, causes, strict=True)
    ]


def test_a_packet_of_two_nodes_is_one_packet() -> None:
    for dimension in ("service", "rule", "reason", "endpoint", "client"):
        interval = counted(dimension, both(), both("drop"))
        assert (interval.total.packets, interval.total.drops, interval.nodes) == (2, 1, 2), dimension


def test_by_node_a_packet_is_in_the_row_of_each_node_and_once_in_the_total() -> None:
    interval = counted("node", both(), both("drop"), JoinedPacket((view("b", way="in"),)))
    assert {name: (row.packets, row.drops) for name, row in interval.rows.items()} == {"a": (2, 0), "b": (3, 1)}
    assert (interval.total.packets, interval.total.drops) == (3, 1)


def test_times_are_those_of_each_node() -> None:
    total = counted("service", both("through")).total
    assert total.whole.count == 2
    ways = {RowWay("node OUTPUT", "node POSTROUTING", "a"), RowWay("node PREROUTING", "node POSTROUTING", "b")}
    assert set(total.ways) == ways
    assert RowWay("x", "y", "a").text == "a: x > y" and RowWay("x", "y").text == "x > y"


def test_the_row_is_that_of_the_view_that_knows_it() -> None:
    """Behind a translation of its source, node b sees another client, and node a another server."""
    asked, translated = Endpoints("192.0.2.1", 4000, "192.0.2.9", 30080), Endpoints(POD_A, 9, POD_B, 8080)
    request = JoinedPacket(
        (
            view("a", 0, "through", ends=asked, to=translated, tcp_flags="SYN"),
            view("b", 9, "in", ends=translated, tcp_flags="SYN"),
        ),
        (LINK,),
    )
    assert set(counted("client", request).rows) == {"192.0.2.1"}
    assert set(counted("endpoint", request).rows) == {f"{POD_B}:8080"}
    assert set(counted("reason", both("drop")).rows) == {"NETFILTER_DROP in nf_hook_slow"}


@pytest.mark.parametrize(
    ("of_a", "of_b", "counts"),
    [
        (("accepted", True, 700), ("accepted", True, 300), "accepted"),
        (("no answer", False, 0), ("accept queue full", False, 0), "accept queue full"),
        (("no answer", False, 0), ("accepted", True, 300), "no answer"),
        (("accepted", True, 700), ("no answer", False, 0), "accepted"),
        (("not known", False, 0), ("accepted", True, 300), "accepted"),
        (("not known", False, 0), ("not known", False, 0), "not known"),
        (("rejected by rule", False, 5), ("no answer", False, 0), "rejected by rule"),
    ],
)
@pytest.mark.parametrize("dimension", ["service", "cause", "node"])
def test_a_syn_of_two_nodes_has_one_cause(
    dimension: str, of_a: tuple[str, bool, int], of_b: tuple[str, bool, int], counts: str
) -> None:
    made, shown = output(dimension)
    joined = both(tcp_flags="SYN", number=7)
    made.joined(joined)
    for node, each in zip("ba", syn_verdicts(joined, of_a, of_b)[::-1], strict=True):
        made.for_node(node).syn(each)
    made.for_node("a").end_batch(0)
    made.summary(RunSummary())
    (interval,) = shown.intervals
    assert dict(+interval.total.causes) == {counts: 1}
    assert interval.total.packets == 1
    if counts == "accepted" and of_a[1]:
        assert interval.total.syn_ack.most == 700, "the time of the first node"
    if dimension == "node":
        assert {name: dict(+row.causes) for name, row in interval.rows.items()} == {"a": {of_a[0]: 1}, "b": {of_b[0]: 1}}


def test_a_verdict_of_one_node_is_counted_when_the_other_says_nothing() -> None:
    made, shown = output()
    joined = both(tcp_flags="SYN", number=7)
    made.joined(joined)
    made.for_node("a").syn(syn_verdicts(joined, ("no answer", False, 0), ("no answer", False, 0))[0])
    made.for_node("a").syn(verdict(view("a", number=8, tcp_flags="SYN").packet, "no answer", good=False))
    made.summary(RunSummary())
    assert shown.intervals[0].total.causes == {"no answer": 2}


def test_packets_that_may_be_one_are_said_and_counted() -> None:
    doubt = JoinedPacket((view("a"),), (JoinLink(0, None, JoinKey.HEADER, Certainty.AMBIGUOUS, 2),))
    interval = counted("service", doubt, both(), replace(both(), complete=False))
    assert (interval.total.packets, interval.total.doubtful) == (3, 2)
    out = io.StringIO()
    PrintedTables("service", "packets", 20, out).show(interval)
    assert "missing: 2 packets perhaps counted more than once" in out.getvalue() and "2 nodes" in out.getvalue()


def test_losses_of_each_node() -> None:
    made, shown = output("service", "a", "b", "c", HOSTILE)
    made.for_node("a").lost(Loss("table", 0, 3, "full"))
    made.for_node("b").lost(Loss(LEFT_OUT, -1, 7, "full"))
    made.for_node("b").not_sent({"packet": 40, "finding": 1})
    made.for_node(HOSTILE).lost(Loss("hook", 0, 60, "full"))
    made.for_node("c").node_summary(RunSummary(unexplained=2, seconds=12.5))
    made.summary(RunSummary(unexplained=2, seconds=99))
    (interval,) = shown.intervals
    assert interval.losses == Losses(63, 7, 2, 41) and interval.seconds == 12.5
    assert {name: each.losses.total for name, each in interval.by_node.items()} == {"a": 3, "b": 48, "c": 2, HOSTILE: 60}
    out = io.StringIO()
    PrintedTables("service", "packets", 20, out).show(interval)
    text = out.getvalue()
    assert "missing on b: 7 packets left out, 41 results that this client was too slow for" in text
    assert "missing on a: 3 events lost, by probe table 3" in text and "missing on 1 more node" in text
    assert "\x1b" not in text and "node\\x1b[2J\\n[bold]xxx" in text.replace("\n", "")
    out = io.StringIO()
    PrintedRecords("service", "packets", 20, out).show(interval)
    line = json.loads(out.getvalue())
    VALIDATOR.validate(line)
    assert line["lost_by_node"]["a"] == {
        "events": 3, "packets_left_out": 0, "packets_unexplained": 0, "by_probe": {"table": 3},
    }  # fmt: skip
    assert line["nodes"] == 4 and line["lost"]["not_sent"] == 41


def test_the_newest_packets_of_a_row_name_their_nodes() -> None:
    row = counted("service", both(), both("drop"), JoinedPacket((view(HOSTILE, way="in"),))).total
    console = Console(file=io.StringIO(), width=120)
    console.print(drawing.packets("shop/cart", row, 9, 120))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "a > b: dropped to eth0" in text and "a > b: delivered to eth0" in text
    assert "\x1b" not in text and "node\\x1b[2J\\n[bold]" in text


def test_json_of_several_nodes_agrees_with_the_schema() -> None:
    for dimension in ("node", "service", "cause"):
        out = io.StringIO()
        PrintedRecords(dimension, "packets", 20, out).show(counted(dimension, both(), both("drop")))
        line = json.loads(out.getvalue())
        VALIDATOR.validate(line)
        assert dimension == "cause" or {hop["node"] for hop in line["total"]["hops"]} == {"a", "b"}


def test_notes_name_the_node() -> None:
    made, notes = NodesTopOutput(Shown()), io.StringIO()
    made.err = notes
    made.for_node("a").begin([CheckResult("bpf", "degraded", "no probe")], "")
    assert "a: bpf: no probe\n" in notes.getvalue()


def test_a_packet_that_a_capture_had_not_explained_is_not_counted() -> None:
    unexplained = NodeView("a", replace(samples.node_port(), unexplained=Evidence.OBSERVED))
    interval = counted("service", JoinedPacket((unexplained,)), JoinedPacket((unexplained, view("b", way="in")), (LINK,)))
    assert interval.total.packets == 1


def test_no_table_if_no_node_was_traced() -> None:
    shown = Shown()
    made = NodesTopOutput(shown)
    made.open()
    made.summary(RunSummary())
    assert not shown.intervals


def test_causes_of_a_node_are_bounded() -> None:
    made, shown = output()
    packet: Packet = view("a", ends=ENDS, tcp_flags="SYN").packet
    for number in range(MOST_CAUSES + 50):
        made.for_node("a").syn(verdict(replace(packet, number=number), f"cause {number}", good=False))
    made.summary(RunSummary())
    causes = shown.intervals[0].total.causes
    assert len(causes) == MOST_CAUSES + 1 and causes["other"] == 50
