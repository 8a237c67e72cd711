# SPDX-License-Identifier: Apache-2.0
"""Matches that are computed, compared with the results of the kernel's own code for the same data."""

from __future__ import annotations

import random
import struct
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.rules.iptables.test_path_search import PACKET, face, marked, number, tcp
from tracer.rules.iptables.entry import Extension, TableHeader
from tracer.rules.iptables.matches import compute, header_matches, mark_after, port_tests
from tracer.rules.packet_view import PacketView

UDP = replace(PACKET, protocol=17, sport=53, dport=5353)
ANY = TableHeader(0, 0, 0, 0, 0, 0, 0, 0, 0, True, False, 0)
LONG = (1 << 128) - 1


def computed(match: tuple[str, int, bytes], p: PacketView = PACKET, mark: int | None = 0) -> bool | None:
    name, revision, data = match
    return compute(Extension(name, revision, 0, data), p, mark)


def multiport(which: int, ports: list[int], ranges: list[int], invert: int = 0) -> tuple[str, int, bytes]:
    padded = [*ports, *[0] * (15 - len(ports))]
    return "multiport", 1, struct.pack("<BB15H15sB", which, len(ports), *padded, bytes(ranges), invert)


@pytest.mark.parametrize(
    ("match", "packet", "answer"),
    [
        (tcp(80), PACKET, True), (tcp(81), PACKET, False), (tcp(80), UDP, False),
        (tcp(80), replace(PACKET, fragment=True), False),
        (("tcp", 0, struct.pack("<HHHHBBBB", 0, 65535, 80, 80, 0, 0, 0, 2)), PACKET, False),
        (("tcp", 0, struct.pack("<HHHHBBBB", 0, 65535, 0, 65535, 0, 0x17, 2, 4)), PACKET, False),
        (("tcp", 0, struct.pack("<HHHHBBBB", 0, 65535, 0, 65535, 0, 0x17, 2, 0)), PACKET, True),
        (("tcp", 0, struct.pack("<HHHHBBBB", 0, 65535, 0, 65535, 2, 0, 0, 0)), PACKET, None),
        (("tcp", 0, struct.pack("<HHHHBBBB", 0, 65535, 81, 81, 2, 0, 0, 0)), PACKET, False),
        (("udp", 0, struct.pack("<HHHHB", 0, 65535, 5353, 5353, 0)), UDP, True),
        (("udp", 0, struct.pack("<HHHHB", 53, 53, 0, 65535, 1)), UDP, False),
        (multiport(1, [22, 80], [0, 0]), PACKET, True), (multiport(0, [22, 80], [0, 0]), PACKET, False),
        (multiport(2, [4000], [0]), PACKET, True), (multiport(1, [70, 90], [1, 0]), PACKET, True),
        (multiport(1, [70, 79, 22], [1, 0, 0]), PACKET, False), (multiport(1, [70, 79], [1, 0], 1), PACKET, True),
        (("icmp", 0, bytes((8, 0, 255, 0))), replace(PACKET, protocol=1, icmp=(8, 0)), True),
        (("icmp", 0, bytes((255, 0, 255, 1))), replace(PACKET, protocol=1, icmp=(8, 0)), False),
        (("icmp6", 0, bytes((128, 0, 255, 0))), replace(PACKET, family="ip6", protocol=58, icmp=(129, 0)), False),
        (("comment", 0, bytes(256)), PACKET, True), (("limit", 0, bytes(40)), PACKET, None),
        (("tcp", 9, bytes(40)), PACKET, None),
    ],
)  # fmt: skip
def test_match(match: tuple[str, int, bytes], packet: PacketView, answer: bool | None) -> None:
    assert computed(match, packet) is answer


def test_marks() -> None:
    assert computed(marked(7), mark=7) is True
    assert computed(marked(7), mark=8) is False
    assert computed(marked(7), mark=None) is None
    assert computed(("mark", 1, struct.pack("<IIB", 1, 1, 1)), mark=3) is False
    assert mark_after(Extension("MARK", 2, 0, struct.pack("<II", 0x4000, 0x4000)), 3) == 0x4003
    assert mark_after(Extension("MARK", 2, 0, struct.pack("<II", 1, 0xFFFFFFFF)), None) is None
    assert mark_after(Extension("LOG", 0, 0, b""), 3) == 3
    for revision, mode_at in ((1, 12), (2, 14)):
        saves, restores = (bytes(mode_at) + bytes((mode, 0, 0, 0)) for mode in (1, 2))
        assert mark_after(Extension("CONNMARK", revision, 0, saves), 3) == 3
        assert mark_after(Extension("CONNMARK", revision, 0, restores), 3) is None, "the restored mark is not known"
    assert mark_after(Extension("SET", 3, 0, bytes(20)), 3) == 3
    assert mark_after(Extension("SET", 3, 0, bytes(12) + struct.pack("<II", 1 << 8, 0)), 3) is None, "--map-mark"
    assert mark_after(Extension("HMARK", 0, 0, b""), 3) is None


@pytest.mark.parametrize(
    ("fields", "answer"),
    [
        ({}, True),
        ({"src": number("10.0.0.0"), "src_mask": 0xFFFFFF00}, True),
        ({"src": number("10.0.0.0"), "src_mask": 0xFFFFFF00, "inverted": 8}, False),
        ({"dst": number("10.0.0.1"), "dst_mask": 0xFFFFFFFF}, False),
        ({"dst": number("10.0.0.1"), "dst_mask": 0xFFFFFFFF, "inverted": 16}, True),
        ({"iniface": face("eth"), "in_mask": 0xFFFFFF << 104}, True),
        ({"iniface": face("eth"), "in_mask": 0xFFFFFFFF << 96}, False),
        ({"iniface": face("eth1"), "in_mask": LONG, "inverted": 1}, True),
        ({"outiface": face("eth0"), "out_mask": 0xFFFFFFFFFF << 88}, False),
        ({"outiface": face("eth0"), "out_mask": 0xFFFFFFFFFF << 88, "inverted": 2}, True),
        ({"protocol": 6, "any_protocol": False}, True), ({"protocol": 17, "any_protocol": False}, False),
        ({"protocol": 6, "any_protocol": False, "inverted": 64}, False),
        ({"fragment": True}, False), ({"fragment": True, "inverted": 32}, True),
    ],
)  # fmt: skip
def test_header(fields: dict[str, Any], answer: bool) -> None:
    assert header_matches(replace(ANY, **fields), PACKET) is answer


def test_fragments() -> None:
    later = replace(PACKET, fragment=True)
    assert header_matches(replace(ANY, fragment=True), later)
    assert not header_matches(replace(ANY, fragment=True, inverted=32), later)


def random_match(r: random.Random) -> Extension:
    """A match on ports, with any of its options."""
    name = r.choice(("tcp", "udp", "multiport"))
    ends = (0, 1, 79, 80, 81, 4000, 65534, 65535)
    if name == "multiport":
        count = r.randrange(16)
        numbers = [r.choice(ends) for _ in range(15)]
        data = struct.pack("<BB15H", r.randrange(4), count, *numbers) + bytes(r.randrange(2) for _ in range(16))
        return Extension(name, 1, 0, data)
    ranges = [r.choice(ends) for _ in range(4)] if r.random() < 0.8 else [0, 65535, 0, 65535]
    inverted = r.randrange(4)
    data = struct.pack("<HHHHBBBB", *ranges, 0, 0, 0, inverted) if name == "tcp" else struct.pack("<HHHHB", *ranges, inverted)
    return Extension(name, 0, 0, data)


def test_packets_that_answer_the_port_tests_alike_match_alike() -> None:
    """Packets share a path on this condition."""
    r = random.Random(1)
    compared = 0
    for _ in range(3000):
        match = random_match(r)
        protocol = 17 if match.name == "udp" else 6
        one, other = (
            replace(PACKET, protocol=protocol, sport=r.choice((0, 1, 79, 80, 4000, 65535)), dport=r.choice((1, 80, 81, 4001)))
            for _ in range(2)
        )
        answers = [[t.low <= p.ports[t.place] <= t.high for t in port_tests(match)] for p in (one, other)]
        if answers[0] == answers[1]:
            compared += 1
            assert compute(match, one, 0) == compute(match, other, 0)
    assert compared > 500


def test_matches_without_a_test_of_ports() -> None:
    assert port_tests(Extension("tcp", 0, 0, struct.pack("<HHHHBBBB", 0, 65535, 0, 65535, 0, 0, 0, 0))) == ()
    assert port_tests(Extension("tcp", 0, 0, struct.pack("<HHHHBBBB", 0, 65535, 22, 23, 0, 0, 0, 0))) == ((1, 22, 23),)
    assert port_tests(Extension("udp", 0, 0, struct.pack("<HHHHBB2x", 53, 53, 0, 65535, 0, 0))) == ((0, 53, 53),)
    assert port_tests(Extension("mark", 1, 0, bytes(12))) == () == port_tests(Extension("tcp", 9, 0, bytes(12)))
