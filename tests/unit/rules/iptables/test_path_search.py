# SPDX-License-Identifier: Apache-2.0
"""The walk through a table: computed where it can be, held to what was observed, and never guessed."""

from __future__ import annotations

import socket
import struct
from dataclasses import replace

import pytest

from tests.support.blobs import R, build
from tracer.events.table_trace import Shape
from tracer.model.evidence import Evidence
from tracer.model.rule import RuleTrace
from tracer.rules.iptables.path_search import FALSE, TARGET, TRUE, UNKNOWN, TableObservation, reconstruct
from tracer.rules.iptables.save_join import SavedRules
from tracer.rules.iptables.table import Table
from tracer.rules.packet_view import PacketView

STATISTIC, LIMIT = ("statistic", 0, bytes(24)), ("limit", 0, bytes(40))
COMMENT = ("comment", 0, b"hello".ljust(256, b"\0"))
UNSEEN = ("bpf", 1, bytes(24))
WATCHED = {
    ("match", "statistic", 0, "ip"),
    ("match", "limit", 0, "ip"),
    ("target", "DNAT", 2, "ip"),
    ("target", "MARK", 2, "ip"),
}


def number(address: str) -> int:
    return int.from_bytes(socket.inet_aton(address), "big")


def face(name: str) -> int:
    return int.from_bytes(name.encode().ljust(16, b"\0"), "big")


PACKET = PacketView("ip", number("10.0.0.1"), number("10.0.0.2"), face("eth0"), 0, 6, sport=4000, dport=80, tcp_flags=2)


def tcp(dport: int) -> tuple[str, int, bytes]:
    return "tcp", 0, struct.pack("<HHHHBBBB", 0, 0xFFFF, dport, dport, 0, 0, 0, 0)


def dnat() -> R:
    return R("DNAT", data=bytes(40), revision=2)


def mark(value: int, mask: int = 0xFFFFFFFF) -> R:
    return R("MARK", data=struct.pack("<II", value, mask), revision=2)


def marked(value: int) -> tuple[str, int, bytes]:
    return "mark", 1, struct.pack("<IIB", value, 0xFFFFFFFF, 0)


def went(
    table: Table, *steps: tuple[int, int], verdict: str = "ACCEPT", hook: int = 1, packet: PacketView = PACKET, lost: int = 0,
    jumps: tuple[int, ...] = (),
) -> RuleTrace:  # fmt: skip
    rules = SavedRules(table, None)
    seen = TableObservation(steps, lost, jumps, lambda act: act in WATCHED)
    return reconstruct(table, lambda e: rules[e.at], hook, verdict, packet, seen)


def places(w: RuleTrace) -> list[str]:
    assert not w.undecided, w.undecided
    return [" > ".join(f"{p.chain} {p.number}" for p in v.path) + f" {v.verdict}".rstrip() for v in w.hits]


def test_plain_rules_are_derived() -> None:
    table = build({
        "INPUT": [R("DROP", src="10.9.0.0/16"), R("A", src="10.0.0.0/8", inverted=0), R("DROP")],
        "A": [R("DROP", in_face="eth1"), R("B", protocol=6, matches=(tcp(80),)), R("ACCEPT", protocol=6)],
        "B": [R(""), R("RETURN", in_face="eth+"), R("DROP")],
    }).table()  # fmt: skip
    w = went(table)
    assert places(w) == [
        "INPUT 2 JUMP",
        "INPUT 2 > A 2 JUMP",
        "INPUT 2 > A 2 > B 1",
        "INPUT 2 > A 2 > B 2 RETURN",
        "INPUT 2 > A 3 ACCEPT",
    ]
    assert {v.evidence for v in w.hits} == {Evidence.DERIVED}
    assert w.decision and w.decision.rule and (w.decision.rule.chain, w.decision.rule.number) == ("A", 3)


def test_a_policy_is_number_0() -> None:
    table = build({"INPUT": [R("ACCEPT", dst="1.2.3.4")]}, policies={"INPUT": "DROP"}).table()
    w = went(table, verdict="DROP")
    assert places(w) == ["INPUT 0 DROP"]
    assert w.hits[0].rule is None


def test_goto_returns_to_the_caller_of_its_chain() -> None:
    table = build({"INPUT": [R("A"), R("ACCEPT")], "A": [R("B", goto=True), R("DROP")], "B": [R("")]}).table()
    assert places(went(table)) == ["INPUT 1 JUMP", "INPUT 1 > A 1 GOTO", "INPUT 1 > B 1", "INPUT 2 ACCEPT"]


def test_observed_matches_lead_the_way() -> None:
    table = build({
        "INPUT": [R("A", matches=(STATISTIC, COMMENT)), R("A", matches=(STATISTIC,)), R("DROP")], "A": [dnat()],
    }).table()  # fmt: skip
    first, second = (e.matches[0].at for e in table.rules("INPUT")[:2])
    target = table.rules("A")[0].target.at
    w = went(table, (first, FALSE), (second, TRUE), (target, TARGET))
    assert places(w) == ["INPUT 2 JUMP", "INPUT 2 > A 1 DNAT"]
    assert [v.evidence for v in w.hits] == [Evidence.OBSERVED, Evidence.OBSERVED]


def test_what_a_match_answered_follows_from_what_came_next() -> None:
    """A kretprobe can be missed: the target that was called next tells all the same."""
    table = build({"INPUT": [R("DNAT", data=bytes(40), revision=2, matches=(LIMIT,)), R("ACCEPT")]}).table()
    rule = table.rules("INPUT")[0]
    assert places(went(table, (rule.matches[0].at, UNKNOWN), (rule.target.at, TARGET))) == ["INPUT 1 DNAT"]
    assert places(went(table, (rule.matches[0].at, UNKNOWN))) == ["INPUT 2 ACCEPT"]


def test_what_could_be_either_is_not_guessed() -> None:
    table = build({"INPUT": [R("ACCEPT", matches=(UNSEEN,)), R("ACCEPT")]}).table()
    w = went(table)
    assert w.undecided == "match bpf of rule 1 of INPUT was not observed and cannot be computed"
    assert [r.number for r in w.possible] == [2, 1] or [r.number for r in w.possible] == [1, 2]
    assert w.decision is None


def test_the_verdict_decides_what_was_not_seen() -> None:
    table = build({"INPUT": [R("DROP", matches=(UNSEEN,)), R("ACCEPT")]}).table()
    assert places(went(table)) == ["INPUT 2 ACCEPT"]
    assert places(went(table, verdict="DROP")) == ["INPUT 1 DROP"]


def test_the_jumps_that_were_seen_choose_between_ways() -> None:
    table = build({"INPUT": [R("A", matches=(UNSEEN,)), R("A")], "A": [dnat()]}).table()
    one, two = (e.at for e in table.rules("INPUT"))
    target = (table.rules("A")[0].target.at, TARGET)
    assert went(table, target).undecided
    assert places(went(table, target, jumps=(two, 77))) == ["INPUT 2 JUMP", "INPUT 2 > A 1 DNAT"]
    assert places(went(table, target, jumps=(one, 77))) == ["INPUT 1 JUMP", "INPUT 1 > A 1 DNAT"]


@pytest.mark.parametrize("steps", [(), ((8, TARGET),), ((8, TRUE), (8, TRUE))])
def test_what_contradicts_is_not_explained(steps: tuple[tuple[int, int], ...]) -> None:
    table = build({"INPUT": [dnat()]}).table()
    assert went(table, *steps).undecided == "no path through these rules agrees with what was observed"


def test_a_verdict_that_no_rule_gives() -> None:
    assert went(build({"INPUT": [R("ACCEPT")]}).table(), verdict="DROP").undecided
    assert went(build({"INPUT": []}).table(), hook=3).undecided


def test_marks_are_followed() -> None:
    table = build({"INPUT": [mark(0x4000, 0x4000), R("DROP", matches=(marked(0x4001),)), R("ACCEPT")]}).table()
    step = (table.rules("INPUT")[0].target.at, TARGET)
    assert places(went(table, step)) == ["INPUT 1 MARK", "INPUT 3 ACCEPT"]
    assert places(went(table, step, packet=replace(PACKET, mark=1), verdict="DROP")) == ["INPUT 1 MARK", "INPUT 2 DROP"]


def test_steps_that_found_no_room() -> None:
    table = build({"INPUT": [R("", matches=(STATISTIC,)), R("", matches=(STATISTIC,)), R("ACCEPT")]}).table()
    first = table.rules("INPUT")[0].matches[0].at
    assert (
        went(table, (first, TRUE), lost=1).undecided
        == "match statistic of rule 2 of INPUT was not observed and cannot be computed"
    )
    assert places(went(table, (first, TRUE), (table.rules("INPUT")[1].matches[0].at, FALSE)))[0] == "INPUT 1"


def test_too_many_ways() -> None:
    rules = [R("", matches=(UNSEEN,)) for _ in range(400)]
    assert went(build({"INPUT": rules}, policies={"INPUT": "DROP"}).table(), verdict="ACCEPT").undecided


UDP = replace(PACKET, protocol=17)
CONNLIMIT = ("connlimit", 1, bytes(40))


def udp(dport: int) -> tuple[str, int, bytes]:
    return "udp", 0, struct.pack("<HHHHB", 0, 0xFFFF, dport, dport, 0)


def hotdrop(w: RuleTrace) -> str:
    """Where a match threw the packet away, and why."""
    assert w.decision and w.decision.verdict == "DROP", w
    return f"{w.decision.location.chain} {w.decision.location.number}: {w.decision.hotdrop}"


def test_a_packet_too_short_for_a_match_is_dropped_there() -> None:
    table = build({"INPUT": [R(""), R("ACCEPT", protocol=17, matches=(udp(53),)), R("DROP")]}).table()
    w = went(table, packet=replace(UDP, shape=Shape.SHAPE_NO_PORTS), verdict="DROP")
    assert places(w) == ["INPUT 1", "INPUT 2 DROP"]
    assert hotdrop(w) == "INPUT 2: the packet is too short for match udp (malformed)"
    assert w.decision and w.decision.evidence is Evidence.DERIVED
    assert went(table, packet=replace(UDP, shape=Shape.SHAPE_NO_PORTS)).undecided, "it cannot have been accepted"
    assert places(went(table, packet=UDP, verdict="DROP")) == ["INPUT 1", "INPUT 3 DROP"]


MULTIPORT = ("multiport", 1, struct.pack("<BB15H15sB", 1, 1, 53, *[0] * 14, b"", 1))
TCP_OPTION = ("tcp", 0, struct.pack("<HHHHBBBB", 0, 0xFFFF, 80, 80, 2, 0, 0, 0))
ICMP = ("icmp", 0, bytes((8, 0, 255, 1)))


@pytest.mark.parametrize(
    ("protocol", "match", "shape", "dropped_there"),
    [
        (6, tcp(80), Shape.SHAPE_NO_HEADER, True), (6, tcp(80), Shape.SHAPE_NO_PORTS, True),
        (6, tcp(81), Shape.SHAPE_NO_OPTIONS, False), (6, TCP_OPTION, Shape.SHAPE_NO_OPTIONS, True),
        (17, udp(53), Shape.SHAPE_NO_HEADER, True), (1, ICMP, Shape.SHAPE_NO_HEADER, True),
        (132, MULTIPORT, Shape.SHAPE_NO_PORTS, True), (132, MULTIPORT, Shape.SHAPE_NO_HEADER, False),
    ],
)  # fmt: skip
def test_what_each_match_wants(protocol: int, match: tuple[str, int, bytes], shape: int, dropped_there: bool) -> None:
    packet = replace(PACKET, protocol=protocol, shape=shape, dport=80 if protocol == 6 else 53)
    table = build({"INPUT": [R("ACCEPT", protocol=protocol, matches=(match,)), R("DROP")]}).table()
    w = went(table, packet=packet, verdict="DROP")
    assert w.decision and (bool(w.decision.hotdrop), w.decision.location.number) == (dropped_there, 1 if dropped_there else 2)


def test_a_fragment_that_begins_in_the_tcp_header() -> None:
    table = build({"INPUT": [R("ACCEPT", protocol=6, matches=(tcp(80),)), R("DROP")]}).table()
    second = replace(PACKET, fragment=True, shape=Shape.SHAPE_OFFSET_8)
    assert "fragment" in hotdrop(went(table, packet=second, verdict="DROP"))
    assert places(went(table, packet=replace(second, shape=Shape.SHAPE_WHOLE), verdict="DROP")) == ["INPUT 2 DROP"]


def test_extension_headers_that_end_too_early() -> None:
    """The search for the protocol throws it away: at the first rule with a protocol whose addresses match."""
    rules = [R("ACCEPT", protocol=6, src="fd00::/16", inverted=0), R("ACCEPT"), R("DROP")]
    packet = replace(PACKET, family="ip6", src=0xFD01 << 112, shape=Shape.SHAPE_BROKEN)
    table = build({"INPUT": [*rules[:1], R("ACCEPT", protocol=17), *rules[1:]]}, "ip6").table()
    assert hotdrop(went(table, packet=packet, verdict="DROP")).startswith("INPUT 2: the packet's IPv6 extension headers end")
    assert places(went(build({"INPUT": rules}, "ip6").table(), packet=packet)) == ["INPUT 2 ACCEPT"]


def test_a_protocol_that_is_not_known_is_not_guessed() -> None:
    packet = replace(PACKET, family="ip6", protocol=60, shape=Shape.SHAPE_UNKNOWN)
    table = build({"INPUT": [R("ACCEPT", protocol=6), R("ACCEPT")]}, "ip6").table()
    assert went(table, packet=packet).undecided.startswith("the header that rule 1 of INPUT tests")
    certain = build({"INPUT": [R("DROP", protocol=6), R("ACCEPT")]}, "ip6").table()
    assert places(went(certain, packet=packet)) == ["INPUT 2 ACCEPT"]


def test_ports_that_could_not_be_read() -> None:
    table = build({"INPUT": [R("ACCEPT", protocol=6, matches=(tcp(80),)), R("ACCEPT")]}).table()
    packet = replace(PACKET, shape=Shape.SHAPE_ELSEWHERE)
    assert went(table, packet=packet).undecided == "match tcp of rule 1 of INPUT was not observed and cannot be computed"


def test_a_watched_match_that_throws_a_packet_away() -> None:
    table = build({"INPUT": [R("ACCEPT", matches=(CONNLIMIT,)), R("ACCEPT", matches=(CONNLIMIT,)), R("DROP")]}).table()
    first, second = (e.matches[0].at for e in table.rules("INPUT")[:2])
    steps = ((first, FALSE), (second, FALSE))

    def so(hotdrop: int | None, *seen: tuple[int, int]) -> RuleTrace:
        observed = TableObservation(seen, 0, (), lambda act: act[1] == "connlimit", hotdrop)
        return reconstruct(table, lambda e: SavedRules(table, None)[e.at], 1, "DROP", PACKET, observed)

    w = so(2, *steps)
    assert hotdrop(w).startswith("INPUT 2: match connlimit could not look into the packet")
    assert w.decision and w.decision.evidence is Evidence.OBSERVED
    assert places(so(0, *steps)) == ["INPUT 3 DROP"]
    assert so(None, *steps).undecided, "of a capture that does not have it"
    assert hotdrop(so(1, steps[0])).startswith("INPUT 1:")
    assert hotdrop(so(1, (first, TRUE))).startswith("INPUT 1:"), "true all the same: the rule ends it"


def test_a_match_that_changes_the_mark() -> None:
    restore = ("socket", 3, bytes((4, 0, 0, 0)))
    rules = [R("", matches=(restore,)), R("ACCEPT", matches=(marked(7),)), R("ACCEPT")]
    table = build({"INPUT": rules}).table()
    first = table.rules("INPUT")[0].matches[0].at

    def so(answer: int, mark: int | None) -> RuleTrace:
        observed = TableObservation(((first, answer),), 0, (), lambda act: act[1] == "socket", 0, mark)
        return reconstruct(table, lambda e: SavedRules(table, None)[e.at], 1, "ACCEPT", PACKET, observed)

    assert so(TRUE, None).undecided == "match mark of rule 2 of INPUT was not observed and cannot be computed"
    assert places(so(TRUE, 7)) == ["INPUT 1", "INPUT 2 ACCEPT"], "nothing changes it any more: it is the mark behind the table"
    assert places(so(TRUE, 8)) == ["INPUT 1", "INPUT 3 ACCEPT"]
    assert places(so(FALSE, 0)) == ["INPUT 3 ACCEPT"]
    assert so(FALSE, 9).undecided == "no path through these rules agrees with what was observed", "nothing changed it to 9"


def test_the_mark_behind_the_table_chooses_between_ways() -> None:
    table = build({"INPUT": [R("A", matches=(UNSEEN,)), R("ACCEPT")], "A": [mark(5)]}).table()
    target = (table.rules("A")[0].target.at, TARGET)

    def so(steps: tuple[tuple[int, int], ...], behind: int) -> RuleTrace:
        observed = TableObservation(steps, 0, (), lambda act: act in WATCHED, 0, behind)
        return reconstruct(table, lambda e: SavedRules(table, None)[e.at], 1, "ACCEPT", PACKET, observed)

    assert places(so((target,), 5))[-1] == "INPUT 2 ACCEPT"
    assert so((target,), 6).undecided


def test_addresses_that_a_target_changed() -> None:
    rules = [R("SNPT", data=bytes(40)), R("ACCEPT", src="fd00::/16"), R("ACCEPT")]
    packet = replace(PACKET, family="ip6", src=0xFD01 << 112)
    w = went(build({"INPUT": rules}, "ip6").table(), packet=packet)
    assert w.undecided == "the header that rule 2 of INPUT tests was not observed and cannot be computed"


def test_a_mark_that_is_not_known_and_changes_again_is_not_the_one_behind_the_table() -> None:
    restore = R("CONNMARK", data=struct.pack("<IIIB", 0, 0xFFFFFFFF, 0xFFFFFFFF, 2) + bytes(3), revision=1)
    rules = [restore, R("A", matches=(marked(7),)), mark(9), R("ACCEPT")]
    table = build({"INPUT": rules, "A": [R("")]}).table()
    observed = TableObservation(((table.rules("INPUT")[2].target.at, TARGET),), 0, (), lambda act: act in WATCHED, 0, 9)
    w = reconstruct(table, lambda e: SavedRules(table, None)[e.at], 1, "ACCEPT", PACKET, observed)
    assert w.undecided == "match mark of rule 2 of INPUT was not observed and cannot be computed"
