# SPDX-License-Identifier: Apache-2.0
"""The JSON line of a packet on a shared path is the one that is made from the packet alone."""

from __future__ import annotations

import io
from typing import Any

import pytest

from tests.support.builders import Trail
from tests.support.shared_paths import assembled, delivered, detail, forwarded, rows_of
from tests.unit.packets.test_path_templates import QUEUES, SYN_OPTIONS, answer, chained
from tracer.model.evidence import Evidence
from tracer.model.kube import Owner
from tracer.model.packet import Packet
from tracer.packets.shared_path import shared_hops
from tracer.render.json import JsonOutput
from tracer.render.parts import json_packet, json_template
from tracer.render.parts.json_template import JsonTemplates, packet_line
from tracer.util.frozen import evolve


def packets_of(*trails: Trail) -> list[Packet]:
    found, assembler = assembled([rows_of(*trails)], True)
    assert assembler.shared == len(trails) - 1
    return found


def lines_of(packets: list[Packet]) -> list[str]:
    templates, lines = JsonTemplates(), []
    for packet in packets:
        hops = shared_hops(packet)
        lines.append(templates.line(packet, hops) if hops else packet_line(packet))
    return lines


@pytest.mark.parametrize(
    "trails",
    [
        [delivered(n, 40000 + n, seq=n % 2, length=60 + n, inode=7 + n) for n in range(6)],
        [forwarded(n, 40000 + n, 20000 + n) for n in range(1, 6)],
        [forwarded(n, 7, 8, seq=7 + n, length=8 + n) for n in range(1, 6)],
        [answer(n, 40000 + n) for n in range(1, 6)],
        [chained(n, 40000 + n, 101, 102) for n in range(1, 6)],
        [
            detail(delivered(n, 40000 + n), "LISTENER", QUEUES, SYN_OPTIONS[:11] + bytes([n]) + SYN_OPTIONS[12:])
            for n in range(1, 6)
        ],
    ],
    ids=["sockets", "two chosen ports", "values that are equal", "answers", "chains", "timestamps"],
)
def test_lines_are_those_of_each_packet(trails: list[Trail]) -> None:
    packets = packets_of(*trails)
    assert lines_of(packets) == [packet_line(packet) for packet in packets]


@pytest.mark.parametrize("text", ["100%", "%s %d", "123456789012345678", "{}", '"\\\n\x1b[0m', "ü 😀"], ids=repr)
def test_texts_are_left_as_they_are(text: str) -> None:
    """Names come from others: a text may look like a mark, or like a place in a template."""
    packets = packets_of(*(delivered(n, 40000 + n) for n in range(1, 5)))
    paths: dict[int, Any] = {}
    named = packets[:1]
    for packet in packets[1:]:
        hops = shared_hops(packet)
        assert hops
        path = paths.setdefault(id(hops.path), hops.path.with_hops([evolve(h, netns=text, in_iface=text) for h in hops]))
        named.append(evolve(packet, hops=hops.on(path), src_owner=Owner("Pod", text, text), netns=text, verdict=text))
    assert lines_of(named) == [packet_line(packet) for packet in named]


def test_a_line_in_which_a_text_depends_on_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the path has no template, and each line is made from its packet."""
    make = json_packet.packet_object

    def packet_object(packet: Packet) -> dict[str, Any]:
        return make(packet) | {"verdict": f"has length {packet.length}" + " and is long" * (packet.length > 1000)}

    monkeypatch.setattr(json_template, "packet_object", packet_object)
    packets = packets_of(*(delivered(n, 40000 + n, length=60 * n) for n in range(1, 5)))
    assert lines_of(packets) == [packet_line(packet) for packet in packets]


def test_an_unexplained_packet_has_a_line_of_its_own() -> None:
    packets = packets_of(*(delivered(n, 40000 + n) for n in range(1, 4)))
    packets[1] = evolve(packets[1], unexplained=Evidence.OBSERVED)
    assert lines_of(packets) == [packet_line(packet) for packet in packets]
    assert '"unexplained"' in lines_of(packets)[1] and '"unexplained"' not in lines_of(packets)[2]


def test_the_output_writes_these_lines() -> None:
    packets, out = packets_of(*(delivered(n, 40000 + n) for n in range(1, 4))), io.StringIO()
    output = JsonOutput(out, io.StringIO())
    for packet in packets:
        output.packet(packet)
    assert out.getvalue().splitlines() == [packet_line(packet) for packet in packets]
