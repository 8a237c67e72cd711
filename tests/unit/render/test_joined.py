# SPDX-License-Identifier: Apache-2.0
"""A packet that several nodes saw, in each output format."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support.node_views import ENDS, EPOCH, INSIDE_NS, MICRO, MILLI, SECOND, view
from tests.unit.render.test_json import SCHEMA
from tracer import render
from tracer.joining.packet_joiner import PacketJoiner
from tracer.model.endpoints import Endpoints
from tracer.model.joined_packet import Certainty, JoinedPacket, JoinKey, JoinLink, NodeView
from tracer.model.time_form import TimeForm
from tracer.render.json import JsonOutput

BEHIND = Endpoints("192.168.56.11", 40001, "10.244.3.9", 80)
ARRIVED = INSIDE_NS + 100 * MICRO


def written(form: str, *packets: JoinedPacket) -> str:
    """What a format writes."""
    out = io.StringIO()
    output = render.find(form)(out, io.StringIO())
    for packet in packets:
        output.joined(packet)
    return out.getvalue()


def joined(*views: NodeView) -> list[JoinedPacket]:
    """The packets of these views."""
    joiner = PacketJoiner()
    for each in views:
        joiner.feed(each)
    return joiner.close()


def translated(**values: Any) -> JoinedPacket:
    """A packet on three nodes; the first one translates it."""
    (found,) = joined(
        view("node-a", to=BEHIND, **values),
        view("node-b", ARRIVED, "through", ends=BEHIND, **values),
        view("node-c", 2 * ARRIVED + 5 * MILLI, "in", ends=BEHIND, **values),
    )
    return found


def test_a_block_has_one_header_and_a_section_for_each_node() -> None:
    lines = written("text", translated(offset=None)).splitlines()
    assert lines[0].endswith("TCP 10.244.1.7:40001 -> 10.244.2.8:8080  ACK  152 B  node eth0")
    assert [line.strip() for line in lines if line.strip().startswith("on ")] == [
        "on node-a",
        "on node-b  clocks not compared  (derived: header as on the other nodes)",
        "on node-c  clocks not compared  (derived: header as on the other nodes)",
    ]
    assert [line.strip() for line in lines if "=>" in line] == [
        "=>  sent to eth0", "=>  forwarded to eth0", "=>  delivered to eth0",
    ]  # fmt: skip
    assert sum("DNAT" in line for line in lines) == 1
    assert lines[-1] == ""


def test_a_section_has_the_time_since_the_first_node() -> None:
    lines = written("text", translated())
    assert "on node-b  +0.13 ms +-0.02 ms" in lines
    assert "on node-c  +5.26 ms +-0.04 ms" in lines


def test_a_conclusion_says_what_it_rests_on() -> None:
    (split, *rest) = joined(view("node-a", length=3000), view("node-b", ARRIVED, "in", length=1500))
    assert not rest
    assert "(derived: its bytes are a part of the other's)" in written("text", split)
    syn: dict[str, Any] = {"tcp_flags": "SYN", "length": 60}
    (other,) = joined(view("node-a", **syn), view("node-b", ARRIVED, "in", ends=BEHIND, **syn))
    assert "(derived: same initial sequence number, other addresses)" in written("text", other)


def test_what_is_ambiguous_or_incomplete_is_said() -> None:
    first, second = view("node-a"), view("node-b", ARRIVED, "in")
    left = JoinedPacket((first,), (JoinLink(0, None, JoinKey.HEADER, Certainty.AMBIGUOUS, 3),))
    came = JoinedPacket((second,), (JoinLink(None, 0, JoinKey.HEADER, Certainty.AMBIGUOUS),), complete=False)
    for form in ("text", "oneline"):
        found = written(form, left, came)
        assert "ambiguous: 3 packets elsewhere can be the one that left node-a" in found
        assert "ambiguous: 1 packet elsewhere can be the one that arrived at node-b, but another equal one may" in found
        assert found.count("incomplete: there were too many packets to wait") == 1


def test_one_line_has_what_all_nodes_show() -> None:
    (line,) = written("oneline", translated()).splitlines()
    fields = line.split("  ")
    assert fields[1:] == [
        "10.244.1.7:40001 -> 10.244.2.8:8080", "TCP ACK", "node-a node: eth0; node-b node: eth0; node-c node: eth0",
        "DNAT 192.168.56.11:40001 -> 10.244.3.9:80", "-", "-", "delivered to eth0 (node-c +5.26 ms +-0.04 ms) (derived)",
    ]  # fmt: skip


def test_json_has_views_and_links() -> None:
    validator = Draft202012Validator(SCHEMA)
    (found,) = map(json.loads, written("json", translated()).splitlines())
    validator.validate(found)
    assert [each["node"] for each in found["views"]] == ["node-a", "node-b", "node-c"]
    assert found["views"][0]["packet"]["dst"] == ENDS.dst
    assert found["links"][1] == {
        "key": "header", "certainty": "derived", "candidates": 1, "earlier": 1, "later": 2,
        "delay_ns": 5_100_000, "delay_error_ns": 20_000,
    }  # fmt: skip
    (unknown,) = map(json.loads, written("json", translated(offset=None)).splitlines())
    validator.validate(unknown)
    assert "delay_ns" not in unknown["links"][0]
    assert "offset_ns" not in unknown["views"][0]
    lost = JoinedPacket((view("node-a"),), (JoinLink(0, None, JoinKey.HEADER, Certainty.AMBIGUOUS, 3),))
    (ambiguous,) = map(json.loads, written("json", lost).splitlines())
    validator.validate(ambiguous)
    assert ambiguous["links"] == [{"key": "header", "certainty": "ambiguous", "candidates": 3, "earlier": 0}]


def test_auto_begins_with_blocks_and_goes_on_with_lines() -> None:
    out = io.StringIO()
    output = render.find("auto")(out, io.StringIO())
    for n in range(150):
        output.joined(JoinedPacket((view("node-a", n),)))
    lines = out.getvalue().splitlines()
    assert "on node-a" in lines[1]
    assert lines[-1].count("  ") == 7


def test_a_format_without_joined_packets_writes_each_view_with_its_node() -> None:
    class Views(JsonOutput):
        """A format that knows packets only."""

        joined = render.base.Output.joined

    out = io.StringIO()
    Views(out, io.StringIO()).joined(translated())
    assert [json.loads(line)["node"] for line in out.getvalue().splitlines()] == ["node-a", "node-b", "node-c"]


def test_names_of_nodes_are_escaped() -> None:
    strange = JoinedPacket((view("a\x1b[2J\n"), view("b", ARRIVED, "in")), ())
    for form in ("text", "oneline", "json"):
        found = written(form, strange)
        assert "\x1b" not in found
        assert all("[2J" not in line or "a" in line for line in found.splitlines())


@pytest.mark.parametrize("form", ["text", "oneline", "auto"])
def test_the_time_is_that_of_the_reference_clock(form: str) -> None:
    early, out = view("node-a", offset=-5 * SECOND), io.StringIO()
    render.find(form)(out, io.StringIO(), times=TimeForm.EPOCH).joined(JoinedPacket((early, view("node-b", MILLI, "in"))))
    assert out.getvalue().startswith(f"{EPOCH // SECOND - 5}.000000 ")
