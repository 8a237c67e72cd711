# SPDX-License-Identifier: Apache-2.0
"""Verdict maps: the element that answers a key, and its text."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tracer.node.nfnetlink import attribute
from tracer.rules.nftables.verdict_maps import (
    CATCH_ALL,
    INTERVAL,
    INTERVAL_END,
    TIMEOUT,
    MapElement,
    VerdictMap,
    element,
    parts,
)

IPV4, IPV6, PROTOCOL, SERVICE, MARK = 7, 8, 12, 13, 19


def concatenated(*types: int) -> int:
    out = 0
    for kind in types:
        out = out << 6 | kind
    return out


def key(*parts: object) -> bytes:
    """Each part in registers of four bytes, as the kernel compares them: address, protocol number, (port,)."""
    out = b""
    for part in parts:
        raw = part if isinstance(part, bytes) else b""
        if isinstance(part, str):
            raw = socket.inet_pton(socket.AF_INET6 if ":" in part else socket.AF_INET, part)
        elif isinstance(part, int):
            raw = struct.pack("B", part)
        elif isinstance(part, tuple):
            raw = struct.pack(">H", *part)
        out += raw + b"\0" * (-len(raw) % 4)
    return out


SERVICES = VerdictMap(
    concatenated(IPV4, PROTOCOL, SERVICE),
    12,
    (
        MapElement(key("172.30.0.1", 6, (443,)), "goto service-A"),
        MapElement(key("172.30.0.1", 17, (53,)), "goto service-B"),
        MapElement(b"", "drop", flags=CATCH_ALL),
    ),
)


@pytest.mark.parametrize(
    ("lookup_key", "text"),
    [
        (key("172.30.0.1", 6, (443,)), "172.30.0.1 . tcp . 443 : goto service-A"),
        (key("172.30.0.1", 17, (53,)), "172.30.0.1 . udp . 53 : goto service-B"),
        (key("172.30.0.1", 17, (54,)), "* : drop"),
    ],
)
def test_concatenated_keys(lookup_key: bytes, text: str) -> None:
    found = SERVICES.find(lookup_key)
    assert found and SERVICES.write(found) == text


def ranges() -> VerdictMap:
    """10-20, 21-30 (adjacent) and 100-200, in the kernel's form: begins and ends."""

    def port(number: int) -> bytes:
        return struct.pack(">H", number)

    return VerdictMap(
        SERVICE,
        2,
        (
            MapElement(port(0), "", flags=INTERVAL_END),
            MapElement(port(10), "accept"),
            MapElement(port(21), "", flags=INTERVAL_END),
            MapElement(port(21), "jump a"),
            MapElement(port(31), "", flags=INTERVAL_END),
            MapElement(port(100), "drop"),
            MapElement(port(201), "", flags=INTERVAL_END),
        ),
    )


@pytest.mark.parametrize(
    ("port", "text"),
    [(10, "10-20 : accept"), (15, "10-20 : accept"), (20, "10-20 : accept"), (21, "21-30 : jump a"), (30, "21-30 : jump a"),
     (31, ""), (9, ""), (150, "100-200 : drop"), (200, "100-200 : drop"), (201, "")],
)  # fmt: skip
def test_ranges(port: int, text: str) -> None:
    verdicts = ranges()
    found = verdicts.find(struct.pack(">H", port))
    assert (verdicts.write(found) if found else "") == text


def test_ranges_of_concatenated_keys() -> None:
    verdicts = VerdictMap(
        concatenated(IPV4, SERVICE), 8, (MapElement(key("10.0.0.0", (80,)), "accept", key("10.0.0.255", (90,))),)
    )
    assert verdicts.find(key("10.0.0.7", (91,))) is None
    found = verdicts.find(key("10.0.0.7", (85,)))
    assert found and verdicts.write(found) == "10.0.0.0 . 80-10.0.0.255 . 90 : accept"


def test_other_types() -> None:
    six = VerdictMap(IPV6, 16, (MapElement(key("fd00::1"), "accept"),))
    assert six.write(six.elements[0]) == "fd00::1 : accept"
    mark = VerdictMap(MARK, 4, (MapElement(struct.pack("<I", 0x4000), "return"),))
    assert mark.write(mark.elements[0]) == "0x00004000 : return"
    unknown = VerdictMap(63, 4, (MapElement(b"\x01\x02\x03\x04", "accept"),))
    assert unknown.write(unknown.elements[0]) == "0x01020304 : accept"


def test_an_element_from_netlink() -> None:
    verdict = attribute(2, [attribute(1, 0xFFFFFFFC), attribute(2, "service-A")])
    raw = attribute(1, [attribute(1, b"\0\x50")]) + attribute(2, [verdict])
    assert element(raw) == MapElement(b"\0\x50", "goto service-A")
    end = attribute(1, [attribute(1, b"\0\x51")]) + attribute(3, INTERVAL_END)
    assert element(end) == MapElement(b"\0\x51", "", b"", INTERVAL_END)
    times_out = raw + attribute(4, (1000).to_bytes(8, "big")) + attribute(5, (300).to_bytes(8, "big"))
    assert element(times_out) == MapElement(b"\0\x50", "goto service-A", times_out=True)


def test_elements_that_may_have_timed_out() -> None:
    """Any element before the first one without a timeout may have answered."""
    one, two = MapElement(key("10.0.0.1"), "accept", times_out=True), MapElement(key("10.0.0.2"), "drop")
    otherwise = MapElement(b"", "drop", flags=CATCH_ALL, times_out=True)
    verdicts = VerdictMap(IPV4, 4, (one, two, otherwise), TIMEOUT)
    assert verdicts.answers(key("10.0.0.1")) == [one, otherwise]
    assert verdicts.answers(key("10.0.0.2")) == [two]
    assert verdicts.answers(key("10.0.0.3")) == [otherwise]


def test_ranges_that_may_have_timed_out() -> None:
    begin = MapElement(struct.pack(">H", 10), "accept", times_out=True)
    otherwise = MapElement(b"", "accept", flags=CATCH_ALL)
    ends = tuple(MapElement(struct.pack(">H", port), "", flags=INTERVAL_END) for port in (0, 20))
    verdicts = VerdictMap(SERVICE, 2, (*ends, begin, otherwise), INTERVAL | TIMEOUT)
    assert verdicts.answers(struct.pack(">H", 15)) == [begin, otherwise]
    assert verdicts.answers(struct.pack(">H", 20)) == [otherwise]


def test_a_range_to_the_end_has_no_end_of_its_own() -> None:
    """nft writes 0-65535 as one element, and only the set's flag shows that it is a range."""
    verdicts = VerdictMap(SERVICE, 2, (MapElement(b"\0\0", "accept"), MapElement(b"", "drop", flags=CATCH_ALL)), INTERVAL)
    found = verdicts.find(struct.pack(">H", 80))
    assert found and verdicts.write(found) == "0-65535 : accept"


def test_the_parts_of_a_key_come_from_the_set() -> None:
    """A type without a fixed length: compared as one number, a part would be compared together with the part before it."""
    fields = [attribute(1, [attribute(1, length)]) for length in (4, 2)]
    lengths = parts(attribute(2, fields))
    assert lengths == (4, 2) and parts(b"") == ()
    element_ = MapElement(key("10.0.0.0", (80,)), "accept", key("10.0.0.255", (90,)))
    assert VerdictMap(concatenated(4, 4), 8, (element_,), INTERVAL, lengths).find(key("10.0.0.7", (95,))) is None


@pytest.mark.parametrize("verdicts", [SERVICES, ranges()], ids=["keys", "ranges"])
def test_elements_are_read_once(verdicts: VerdictMap) -> None:
    """Each packet looks up a key, and a map may have 200,000 elements."""

    class Counted(tuple[MapElement, ...]):
        passes = 0

        def __iter__(self) -> Iterator[MapElement]:
            Counted.passes += 1
            return super().__iter__()

    counted = replace(verdicts, elements=Counted(verdicts.elements))
    counted.find(verdicts.elements[1].key)
    once = Counted.passes
    for element_ in verdicts.elements:
        assert counted.find(element_.key) == verdicts.find(element_.key)
    assert Counted.passes == once
