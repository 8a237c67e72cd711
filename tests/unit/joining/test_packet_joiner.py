# SPDX-License-Identifier: Apache-2.0
"""Which views are one packet, how certain that is, and what is never concluded."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest

from tests.support.joining_check import check
from tests.support.node_views import ENDS, EPOCH, INSIDE_NS, MICRO, MILLI, SECOND, view
from tracer.joining import join_groups
from tracer.joining.packet_joiner import MAX_VIEWS, TRANSIT_NS, PacketJoiner
from tracer.joining.pair_clocks import UNKNOWN_ERROR_NS
from tracer.model.endpoints import Endpoints
from tracer.model.joined_packet import Certainty, JoinedPacket, JoinKey, JoinLink, NodeView
from tracer.util.evictions import evictions

OBSERVED, DERIVED, AMBIGUOUS = Certainty
TRANSLATED = Endpoints("192.168.56.11", 40001, "10.244.3.9", 80)
ENDS6 = Endpoints("fd00:1::7", 40001, "fd00:2::8", 8080)
ARRIVED = INSIDE_NS + 100 * MICRO
"""When a packet is at the next node that was made at 0, ns."""


def joined(*views: NodeView, joiner: PacketJoiner | None = None) -> list[JoinedPacket]:
    """All packets of these views."""
    joiner = joiner or PacketJoiner()
    for each in views:
        joiner.feed(each)
    return joiner.close()


def shape(packets: Iterable[JoinedPacket]) -> list[tuple[str, list[tuple[int | None, int | None, str, str, int]]]]:
    """The nodes of each packet in order, and its links without their times."""
    return [
        (" ".join(v.node for v in p.views), [(x.earlier, x.later, x.key, x.certainty, x.candidates) for x in p.links])
        for p in packets
    ]


def test_the_header_that_left_one_node_and_arrived_at_another_is_one_packet() -> None:
    for order in (1, -1):
        found = joined(*(view("a"), view("b", ARRIVED, "in"))[::order])
        assert shape(found) == [("a b", [(0, 1, JoinKey.HEADER, OBSERVED, 1)])]
        assert found[0].complete
        link = found[0].links[0]
        assert link.delay is not None
        assert abs(link.delay - 100 * MICRO) <= link.error <= 20 * MICRO


@pytest.mark.parametrize(
    "other",
    [{"seq": 78}, {"ack": 1}, {"ident": 4712}, {"tcp_flags": "FIN ACK"}, {"protocol": "UDP"},
     {"ends": ENDS.reversed}, {"ends": Endpoints(ENDS.src, 40002, ENDS.dst, 8080)}, {"way": "out"}, {"way": "local"}],
)  # fmt: skip
def test_views_that_differ_are_two_packets(other: dict[str, Any]) -> None:
    assert shape(joined(view("a"), view("b", ARRIVED, **{"way": "in"} | other))) == [("a", []), ("b", [])]


def test_datagrams_of_other_lengths_are_two_packets() -> None:
    udp: dict[str, Any] = {"protocol": "UDP", "tcp_flags": ""}
    assert len(joined(view("a", **udp), view("b", ARRIVED, "in", **udp | {"length": 153}))) == 2


def test_a_packet_cannot_arrive_before_it_left_or_long_after() -> None:
    error = 20 * MICRO  # of both clocks together
    for late, is_joined in ((-error - 1, False), (-error, True), (TRANSIT_NS + error, True), (TRANSIT_NS + error + 1, False)):
        assert (len(joined(view("a"), view("b", INSIDE_NS + late, "in"))) == 1) == is_joined


def test_offsets_of_clocks_count() -> None:
    ahead = view("b", ARRIVED + 3 * SECOND, "in", offset=-3 * SECOND)
    assert shape(joined(view("a"), ahead)) == [("a b", [(0, 1, JoinKey.HEADER, OBSERVED, 1)])]
    assert len(joined(view("a"), view("b", ARRIVED + 3 * SECOND, "in"))) == 2


def test_clocks_that_were_not_compared_join_but_give_no_delay() -> None:
    (found,) = joined(view("a", offset=None), view("b", ARRIVED + 4 * SECOND, "in", offset=None))
    assert found.links == (JoinLink(0, 1, JoinKey.HEADER, OBSERVED),)
    apart = 2 * UNKNOWN_ERROR_NS + TRANSIT_NS
    assert len(joined(view("a", offset=None), view("b", ARRIVED + apart, "in", offset=None))) == 2


def test_packets_in_both_directions_make_the_delay_exact() -> None:
    joiner = PacketJoiner()
    delays = []
    for n, (ends, first, second) in enumerate(((ENDS, "a", "b"), (ENDS.reversed, "b", "a"), (ENDS, "a", "b"))):
        start = n * 20 * SECOND
        joiner.feed(view(first, start, ends=ends, ident=n + 1, offset=None))
        joiner.feed(view(second, start + ARRIVED, "in", ends=ends, ident=n + 1, offset=None))
        (found,) = joiner.take(EPOCH + start + 19 * SECOND)
        delays.append((found.links[0].delay, found.links[0].error))
    assert delays[0] == (None, 0)
    # The first packet gave one bound, the second the other; after 20 s the clocks may have drifted apart by 10 ms.
    delay, error = delays[2]
    assert delay is not None
    assert abs(delay - 100 * MICRO) <= error <= 11 * MILLI


def test_equal_packets_at_the_same_time_are_ambiguous() -> None:
    udp: dict[str, Any] = {"protocol": "UDP", "tcp_flags": "", "ident": 0}
    found = joined(view("a", **udp), view("a", MICRO, **udp), view("b", ARRIVED, "in", **udp))
    assert shape(found) == [
        ("a", [(0, None, JoinKey.PAYLOAD, AMBIGUOUS, 1)]),
        ("a", [(0, None, JoinKey.PAYLOAD, AMBIGUOUS, 1)]),
        ("b", [(None, 0, JoinKey.PAYLOAD, AMBIGUOUS, 2)]),
    ]


def test_a_duplicate_on_the_way_is_ambiguous() -> None:
    found = joined(view("a"), view("b", ARRIVED, "in"), view("b", 2 * ARRIVED, "in"))
    assert shape(found)[0] == ("a", [(0, None, JoinKey.HEADER, AMBIGUOUS, 2)])


def test_order_alone_is_no_proof() -> None:
    # Two left, two arrived. The second may be a duplicate of the first, and the one that left second may be lost.
    udp: dict[str, Any] = {"protocol": "UDP", "tcp_flags": "", "ident": 0}
    times = (("a", 0, "out"), ("b", ARRIVED, "in"), ("a", MILLI, "out"), ("b", MILLI + ARRIVED, "in"))
    views = [view(node, time, way, **udp) for node, time, way in times]
    assert all(link.certainty is AMBIGUOUS for packet in joined(*views) for link in packet.links)


def test_equal_packets_at_other_times_are_told_apart() -> None:
    syn_ack: dict[str, Any] = {"tcp_flags": "SYN ACK", "ident": 0, "length": 60}
    again = SECOND + MILLI
    found = joined(
        view("a", **syn_ack),
        view("b", ARRIVED, "in", **syn_ack),
        view("a", again, **syn_ack),
        view("b", again + ARRIVED, "in", **syn_ack),
    )
    assert [nodes for nodes, _ in shape(found)] == ["a b", "a b"]
    lost = joined(view("a", **syn_ack), view("a", again, **syn_ack), view("b", again + ARRIVED, "in", **syn_ack))
    assert [nodes for nodes, _ in shape(lost)] == ["a", "a b"]


def test_time_decides_between_equal_packets_that_wait_together() -> None:
    udp: dict[str, Any] = {"protocol": "UDP", "tcp_flags": "", "ident": 0}
    second = 450 * MILLI
    found = joined(
        view("a", **udp),
        view("b", ARRIVED, "in", **udp),
        view("a", second, **udp),
        view("b", second + 200 * MILLI, "in", **udp),
    )
    assert shape(found) == [
        ("a b", [(0, 1, JoinKey.PAYLOAD, DERIVED, 1)]), ("a b", [(0, 1, JoinKey.PAYLOAD, DERIVED, 1)]),
    ]  # fmt: skip


def test_payload_tells_equal_datagrams_apart() -> None:
    head = bytes((0x45, *range(19), *range(8)))
    udp: dict[str, Any] = {"protocol": "UDP", "tcp_flags": "", "ident": 0}
    found = joined(
        view("a", raw=head + b"one", **udp),
        view("a", 1, raw=head + b"two", **udp),
        view("b", ARRIVED, "in", raw=head + b"two", **udp),
        view("b", ARRIVED + 1, "in", raw=head + b"one!"[:3], **udp),
    )
    assert [(nodes, links[0][3]) for nodes, links in shape(found)] == [("a b", DERIVED), ("a b", DERIVED)]
    assert [p.views[1].packet.raw[-3:] for p in found] == [b"one", b"two"]


def test_three_nodes_with_a_translation() -> None:
    second = 2 * ARRIVED
    found = joined(view("a"), view("b", ARRIVED, "through", to=TRANSLATED), view("c", second, "in", ends=TRANSLATED))
    assert shape(found) == [
        ("a b c", [(0, 1, JoinKey.HEADER, OBSERVED, 1), (1, 2, JoinKey.HEADER, OBSERVED, 1)]),
    ]  # fmt: skip


def test_three_nodes_without_a_translation() -> None:
    found = joined(view("c", 2 * ARRIVED, "in"), view("b", ARRIVED, "through"), view("a"))
    assert shape(found) == [
        ("a b c", [(0, 1, JoinKey.HEADER, DERIVED, 1), (1, 2, JoinKey.HEADER, DERIVED, 1)]),
    ]  # fmt: skip


def test_the_same_node_twice() -> None:
    as_it_is = joined(view("a"), view("b", ARRIVED, "through"), view("a", 2 * ARRIVED, "in"))
    assert [nodes for nodes, _ in shape(as_it_is)] == ["a b a"]
    translated = joined(view("a"), view("b", ARRIVED, "through", to=TRANSLATED), view("a", 2 * ARRIVED, "in", ends=TRANSLATED))
    assert [nodes for nodes, _ in shape(translated)] == ["a b a"]


def test_a_translation_loop_ends() -> None:
    ways = [Endpoints("192.168.56.10", 40000 + n, "192.168.56.11", 30000 + n) for n in range(MAX_VIEWS + 3)]
    views = [view("ab"[n % 2], n * ARRIVED, "through", ends=here, to=there) for n, (here, there) in enumerate(pairwise(ways))]
    found = joined(*views)
    assert max(len(packet.views) for packet in found) == MAX_VIEWS
    assert sum(len(packet.views) for packet in found) == len(views)
    assert {link.certainty for packet in found for link in packet.links} == {OBSERVED, AMBIGUOUS}


def test_two_ways_for_one_packet_are_ambiguous() -> None:
    # Forwarded as it is by two nodes at times that their clocks cannot order.
    found = joined(view("a"), view("b", ARRIVED, "through"), view("c", ARRIVED, "through"), view("d", 3 * ARRIVED, "in"))
    assert all(link.certainty is AMBIGUOUS for packet in found for link in packet.links)
    assert all(len(packet.views) == 1 for packet in found)


# ---- losses and bounds ----


def test_a_loss_where_it_left_makes_a_weak_key_ambiguous() -> None:
    for values, certainty in (({"protocol": "UDP", "tcp_flags": ""}, AMBIGUOUS), ({"ident": 0}, AMBIGUOUS), ({}, OBSERVED)):
        joiner = PacketJoiner()
        joiner.note_loss("a", EPOCH - MILLI, EPOCH + 10)
        found = joined(view("a", **values), view("b", ARRIVED, "in", **values), joiner=joiner)
        assert found[0].links[0].certainty is certainty
    elsewhere = PacketJoiner()
    elsewhere.note_loss("b", EPOCH - MILLI, EPOCH + 10)
    elsewhere.note_loss("a", EPOCH - 2 * SECOND, EPOCH - SECOND)
    weak: dict[str, Any] = {"protocol": "UDP", "tcp_flags": ""}
    assert joined(view("a", **weak), view("b", ARRIVED, "in", **weak), joiner=elsewhere)[0].links[0].certainty is OBSERVED


def test_views_beyond_the_bound_are_given_up_and_counted() -> None:
    evictions.read()
    joiner = PacketJoiner(max_waiting=10)
    views = [view("a", n, ident=n + 1) for n in range(30)]
    found = joined(*views, view("b", ARRIVED, "in", ident=1), view("b", ARRIVED + 9, "in", ident=30), joiner=joiner)
    assert sum(len(packet.views) for packet in found) == 32
    assert joiner.evicted == 20 == evictions.read()["views waiting for those of other nodes"]
    assert [packet.complete for packet in found].count(False) == 20
    # The first was given up before its arrival came: nothing is concluded for it, and nothing for what left at that time.
    certain = [(p.views[0].packet.ident, len(p.views)) for p in found for link in p.links if link.certainty is not AMBIGUOUS]
    assert certain == []


def test_too_many_equal_packets_are_ambiguous_and_counted() -> None:
    evictions.read()
    udp: dict[str, Any] = {"protocol": "UDP", "tcp_flags": "", "ident": 0}
    views = [view("ab"[n % 2], n * MICRO, ("out", "in")[n % 2], **udp) for n in range(3 * join_groups.MAX_ENDS)]
    found = joined(*views)
    assert len(found) == len(views)
    assert all(link.certainty is AMBIGUOUS for packet in found for link in packet.links)
    assert evictions.read()["packets with equal headers"] >= 2


def test_packets_wait_for_the_horizon_and_come_in_the_order_of_their_times() -> None:
    joiner = PacketJoiner()
    joiner.feed(view("a", 5 * MILLI, "local", ident=9))
    joiner.feed(view("a"))
    assert joiner.take(EPOCH + 10 * MILLI) == []
    joiner.feed(view("b", ARRIVED, "in"))
    assert joiner.take(EPOCH + 100 * MILLI) == []
    assert [len(p.views) for p in joiner.take(EPOCH + SECOND)] == [2, 1]
    assert joiner.waiting == 0
    assert joiner.close() == []


def test_what_comes_after_the_horizon_is_counted_and_proves_less() -> None:
    joiner = PacketJoiner()
    joiner.take(EPOCH + SECOND)
    udp: dict[str, Any] = {"protocol": "UDP", "tcp_flags": ""}
    found = joined(view("a", **udp), view("b", ARRIVED, "in", **udp), joiner=joiner)
    assert joiner.late == 2
    assert found[0].links[0].certainty is AMBIGUOUS


# ---- segments, and SYNs whose addresses were translated on the way ----


def part(n: int, size: int = 1400, **values: Any) -> dict[str, Any]:
    """The values of the n-th part of a segment that begins with sequence number 77 and identification 4711."""
    return {"seq": (77 + n * size) % (1 << 32), "ident": 4711 + n, "length": 52 + size, **values}


def test_a_segment_that_is_divided_on_the_way() -> None:
    found = joined(view("a", length=52 + 3 * 1400), *(view("b", ARRIVED + n, "in", **part(n)) for n in (1, 0, 2)))
    assert shape(found) == [("a b b b", [(0, n, JoinKey.RANGE, DERIVED, 1) for n in (1, 2, 3)])]


def test_segments_that_the_receiver_merges() -> None:
    found = joined(*(view("a", n, **part(n)) for n in range(3)), view("b", ARRIVED, "in", length=52 + 3 * 1400))
    assert [nodes for nodes, _ in shape(found)] == ["a a a b"]
    assert {link.key for link in found[0].links} == {JoinKey.RANGE}
    assert [(link.earlier, link.later) for link in found[0].links] == [(0, 3), (1, 3), (2, 3)]


def test_a_part_at_the_end_of_the_sequence_numbers() -> None:
    first = (1 << 32) - 1400
    found = joined(
        view("a", seq=first, length=52 + 2800),
        view("b", ARRIVED, "in", seq=first, length=1452),
        view("b", ARRIVED + 1, "in", seq=0, ident=4712, length=1452),
    )
    assert [nodes for nodes, _ in shape(found)] == ["a b b"]


def test_a_part_that_is_sent_again_is_a_packet_of_its_own() -> None:
    again = part(1, ident=4800)
    found = joined(
        view("a", length=52 + 3 * 1400),
        view("b", ARRIVED, "in", **part(0)),
        view("a", MILLI, **again),
        view("b", MILLI + ARRIVED, "in", **again),
    )
    assert shape(found) == [
        ("a b", [(0, 1, JoinKey.RANGE, DERIVED, 1)]), ("a b", [(0, 1, JoinKey.HEADER, OBSERVED, 1)]),
    ]  # fmt: skip


def test_a_part_of_two_segments_is_ambiguous() -> None:
    whole: dict[str, Any] = {"ends": ENDS6, "ident": 0, "length": 72 + 4200}
    found = joined(view("a", **whole), view("a", MILLI, **whole), view("b", MILLI + ARRIVED, "in", **whole | {"length": 1472}))
    assert [links for nodes, links in shape(found) if nodes == "b"] == [[(None, 0, JoinKey.RANGE, AMBIGUOUS, 2)]]


@pytest.mark.parametrize("other", [{"seq": 76}, {"seq": 77 + 4200, "ident": 4714}, {"ack": 1}, {"ident": 4712}, {"length": 52}])
def test_what_is_no_part_of_a_segment(other: dict[str, Any]) -> None:
    assert len(joined(view("a", length=52 + 4200), view("b", ARRIVED, "in", **part(0) | other))) == 2


SYN: dict[str, Any] = {"tcp_flags": "SYN", "length": 60, "ack": 0}


def test_a_syn_with_other_addresses_is_found_by_its_sequence_number() -> None:
    found = joined(view("a", **SYN), view("b", ARRIVED, "in", ends=TRANSLATED, **SYN))
    assert shape(found) == [("a b", [(0, 1, JoinKey.SEQUENCE, DERIVED, 1)])]


def test_a_sequence_number_alone_is_not_enough() -> None:
    other = SYN | {"ident": 1}
    assert len(joined(view("a", **SYN), view("b", ARRIVED, "in", ends=TRANSLATED, **other))) == 2
    assert len(joined(view("a", **SYN), view("a", ARRIVED, "in", ends=TRANSLATED, **SYN))) == 2
    without = SYN | {"ident": 0}
    assert len(joined(view("a", **without), view("b", ARRIVED, "in", ends=TRANSLATED, **without))) == 2
    half = Endpoints(ENDS.src, ENDS.sport, "10.244.3.9", 80)
    assert len(joined(view("a", **without), view("b", ARRIVED, "in", ends=half, **without))) == 1


def test_several_syns_with_one_sequence_number_are_ambiguous() -> None:
    others = [Endpoints("203.0.113.7", port, "192.168.56.11", 30443) for port in (1, 2)]
    found = joined(view("a", **SYN), *(view("b", ARRIVED, "in", ends=ends, **SYN) for ends in others))
    assert shape(found)[0] == ("a", [(0, None, JoinKey.SEQUENCE, AMBIGUOUS, 2)])


def test_a_later_packet_with_other_addresses_is_not_joined() -> None:
    assert len(joined(view("a"), view("b", ARRIVED, "in", ends=TRANSLATED))) == 2


# ---- made traffic ----


@pytest.mark.parametrize(("seed", "rate", "has_pings"), [(1, 20_000, True), (2, 2_000, True), (3, 2_000, False)])
def test_no_pair_of_made_packets_is_wrong(seed: int, rate: int, has_pings: bool) -> None:
    result = check(4_000, seed, rate, has_pings)
    assert result.wrong == 0
    assert result.joined > 3_000
    assert 0 < result.ambiguous < result.joined
