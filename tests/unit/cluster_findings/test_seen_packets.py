# SPDX-License-Identifier: Apache-2.0
"""What came and may be a packet that seems to be lost; what is kept of it, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.node_views import ENDS, EPOCH, view
from tracer.cluster_findings import seen_packets
from tracer.cluster_findings.seen_packets import SeenPackets
from tracer.joining.wire_headers import WireHeader
from tracer.model.joined_packet import Certainty, JoinedPacket, JoinKey, JoinLink
from tracer.model.packet import Packet
from tracer.util.evictions import evictions

LEFT = WireHeader(ENDS, "eth0", EPOCH)


def is_like(came: dict[str, Any], left: dict[str, Any], *links: JoinLink) -> bool:
    """Whether a packet that came at 0 and may have links may be one that left at 0."""
    seen = SeenPackets()
    seen.add(JoinedPacket((view("b", 0, "in", **came),), links), 0, is_own=False)
    return seen.is_like("b", packet(**left), LEFT, EPOCH, 0)


def packet(**values: Any) -> Packet:
    return view("a", **values).packet


def link(key: JoinKey, certainty: Certainty) -> JoinLink:
    return JoinLink(None, 0, key, certainty)


PART = link(JoinKey.RANGE, Certainty.DERIVED)
ONE_OF_SEVERAL = link(JoinKey.HEADER, Certainty.AMBIGUOUS)
KNOWN = link(JoinKey.HEADER, Certainty.OBSERVED)


def test_one_without_a_departure_may_be_any_of_its_flow() -> None:
    assert is_like({"seq": 1, "ident": 1, "length": 60}, {})
    assert not is_like({}, {}, KNOWN) and not is_like({}, {}, link(JoinKey.SEQUENCE, Certainty.DERIVED))


def test_one_of_several_is_only_one_with_its_header() -> None:
    assert is_like({}, {}, ONE_OF_SEVERAL)
    for values in ({"seq": 1}, {"ident": 1}, {"length": 60}):
        assert not is_like(values, {}, ONE_OF_SEVERAL)


@pytest.mark.parametrize(
    ("came", "left", "expected"),
    [
        ((1000, 3000, 10), (2000, 1000, 11), True),  # inside
        ((1000, 3000, 10), (2000, 1000, 99), True),
        ((1000, 3000, 10), (3900, 1000, 99), True),  # across its end
        ((1000, 3000, 10), (100, 1000, 99), True),  # across its begin
        ((1000, 3000, 10), (4000, 1000, 99), False),  # behind it
        ((1000, 3000, 10), (90_000, 1000, 13), False),
        ((1000, 1000, 10), (1000, 3000, 10), True),  # a part of it
        ((5, 3000, 10), ((1 << 32) - 1000, 1100, 10), True),
        ((1000, 3000, 10), (900, 100, 9), False),  # before it
    ],
)
def test_a_merged_one_may_be_each_segment_that_it_overlaps(
    came: tuple[int, int, int], left: tuple[int, int, int], expected: bool
) -> None:
    first, second = ({"seq": seq, "length": 52 + size, "ident": ident} for seq, size, ident in (came, left))
    assert is_like(first, second, PART) == expected


def test_an_acknowledgement_behind_a_merged_segment_is_told_apart_by_its_identification() -> None:
    merged = {"seq": 1000, "length": 52 + 3000, "ident": 10}
    assert not is_like(merged, {"seq": 4000, "length": 52, "ident": 500}, PART)
    assert is_like(merged, {"seq": 4000, "length": 52, "ident": 13}, PART), "it may be a byte of data without options"


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_packets, "MOST_SEEN", 3)
    evictions.read()
    seen = SeenPackets()
    for time in range(5):
        seen.add(JoinedPacket((view("b", time, "in"),)), 0, is_own=False)
    assert (len(seen), seen.forgotten) == (3, EPOCH + 1) and evictions.read()["packets without a certain departure"] == 2
    seen.forget(EPOCH + 4)
    assert len(seen) == 1 and sum(map(len, seen._by_key.values())) == 2
    seen.forget(EPOCH + 5)
    assert len(seen) == 0 and not seen._by_key


def test_what_a_node_sends_itself_is_not_kept() -> None:
    seen = SeenPackets()
    seen.add(JoinedPacket((view("a"),)), 0, is_own=True)
    assert len(seen) == 0
    seen.add(JoinedPacket((view("a", 5, "drop"),)), 0, is_own=True)
    assert seen.has_ended("a", packet(), LEFT, EPOCH) and not seen.has_ended("a", packet(), LEFT, EPOCH + 5 + 10_001)
