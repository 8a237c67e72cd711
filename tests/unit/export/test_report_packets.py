# SPDX-License-Identifier: Apache-2.0
"""Packets of the report: by connection, with equal parts stored once, and not too many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import sample_packets
from tracer.export import _report_packets
from tracer.export._report_packets import ReportPackets
from tracer.model.handshake import Cause, ConnectionAttempt, HandshakeVerdict
from tracer.model.namespace_name import HOST
from tracer.model.packet import Outcome, Packet
from tracer.render.parts.json_packet import packet_object


def collected(*packets: Packet) -> ReportPackets:
    made = ReportPackets()
    for packet in packets:
        made.add(packet)
    return made


def test_both_directions_are_one_connection_with_common_lanes() -> None:
    found = collected(sample_packets.node_port(), sample_packets.node_port_reply(), sample_packets.rejected()).to_object()
    first, second = found["connections"]
    assert (first["packets"], second["packets"]) == ([0, 1], [2])
    assert (first["src"], first["dport"]) == ("192.168.56.1", 30285)
    names = [found["lanes"][at] for at in first["lanes"]]
    assert names == [["node", "eth0"], ["node", ""], ["pod http-proxy", ""]]
    assert [p["lanes"] for p in found["packets"][:2]] == [[0, 1, 2], [2, 1, 0]]


def test_a_syn_with_another_sequence_number_begins_another_connection() -> None:
    syn = sample_packets.node_port()
    found = collected(syn, replace(syn, number=7), replace(syn, number=8, seq=syn.seq + 1)).to_object()
    assert [c["packets"] for c in found["connections"]] == [[0, 1], [2]]


def test_equal_paths_are_stored_once_and_nothing_of_a_hop_is_lost() -> None:
    syn = sample_packets.node_port()
    made = collected(syn, replace(syn, number=7)).to_object()
    first, again = made["packets"]
    assert first["path"] == again["path"] and len(made["paths"]) == 1
    shown = [made["hops"][at] for at in made["paths"][first["path"]]]
    for time, hop, expected in zip(first["times"], shown, packet_object(syn)["hops"], strict=True):
        left_out = {key: expected.pop(key) for key in ("acted", "possible") if key in expected}
        assert hop | {"time_ns": time} == expected and set(left_out) <= {"acted", "possible"}


def test_there_is_a_most_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_report_packets, "MOST_BAD", 1)
    monkeypatch.setattr(_report_packets, "MOST_GOOD", 2)
    made = ReportPackets()
    good = sample_packets.node_port()
    kept = [made.add(replace(good, number=n)) for n in range(3)]
    kept += [made.add(replace(good, number=n, outcome=Outcome.DROPPED)) for n in (3, 4)]
    assert kept == [True, True, False, True, False]
    assert [p["number"] for p in made.to_object()["packets"]] == [0, 1, 3]


def test_a_cause_belongs_to_its_syn_if_that_is_on_the_page() -> None:
    syn = sample_packets.node_port()
    made = collected(syn)
    for packet in (syn, replace(syn, number=99)):
        attempt = ConnectionAttempt(packet, 0)
        ends, cause = packet.endpoints, Cause("no answer", "why")
        made.add_verdict(HandshakeVerdict(1, 0, ends, ends, HOST, cause, attempt=attempt))
    assert made.to_object()["causes"] == [{"packet": syn.number, "cause": "no answer", "text": "why", "good": False}]
