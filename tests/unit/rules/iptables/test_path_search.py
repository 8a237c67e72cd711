# SPDX-License-Identifier: Apache-2.0
"""The rule trace of a table: computed where possible, compared with the observation, and never guessed."""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection
from dataclasses import replace

import pytest

from tests.support.blobs import R, build
from tracer.events.table_trace import Shape
from tracer.model.evidence import Evidence
from tracer.model.rule import RuleTrace
from tracer.rules.iptables.path_search import FALSE, TARGET, TRUE, UNKNOWN, TableObservation, reconstruct
from tracer.rules.iptables.save_join import SavedRules
from tracer.rules.iptables.table import Table
from tracer.rules.packet_view import ConnectionView, PacketView

STATISTIC, LIMIT = ("statistic", 0, bytes(24)), ("limit", 0, bytes(40))
COMMENT = ("comment", 0, b"hello".ljust(256, b"\0"))
UNWATCHED = ("bpf", 1, bytes(24))
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


def traced(
    table: Table, *steps: tuple[int, int], verdict: str = "ACCEPT", hook: int = 1, packet: PacketView = PACKET, lost: int = 0,
    jumps: tuple[int, ...] = (), watched: Collection[tuple[str, str, int, str]] = WATCHED,
) -> RuleTrace:  # fmt: skip
    rules = SavedRules(table, None)
    observation = TableObservation(steps, lost, jumps, lambda extension: extension in watched)
    return reconstruct(table, lambda e: rules[e.at], hook, verdict, packet, observation)


def paths(trace: RuleTrace) -> list[str]:
    assert not trace.undecided, trace.undecided
    return [" > ".join(f"{p.chain} {p.number}" for p in v.path) + f" {v.verdict}".rstrip() for v in trace.hits]


def test_plain_rules_are_derived() -> None:
    table = build({
        "INPUT": [R("DROP", src="10.9.0.0/16"), R("A", src="10.0.0.0/8", inverted=0), R("DROP")],
        "A": [R("DROP", in_face="eth1"), R("B", protocol=6, matches=(tcp(80),)), R("ACCEPT", protocol=6)],
        "B": [R(""), R("RETURN", in_face="eth+"), R("DROP")],
    }).table()  # fmt: skip
    trace = traced(table)
    assert paths(trace) == [
        "INPUT 2 JUMP",
        "INPUT 2 > A 2 JUMP",
        "INPUT 2 > A 2 > B 1",
        "INPUT 2 > A 2 > B 2 RETURN",
        "INPUT 2 > A 3 ACCEPT",
    ]
    assert {v.evidence for v in trace.hits} == {Evidence.DERIVED}
    assert trace.decision and trace.decision.rule and (trace.decision.rule.chain, trace.decision.rule.number) == ("A", 3)


def test_a_policy_is_number_0() -> None:
    table = build({"INPUT": [R("ACCEPT", dst="1.2.3.4")]}, policies={"INPUT": "DROP"}).table()
    trace = traced(table, verdict="DROP")
    assert paths(trace) == ["INPUT 0 DROP"]
    assert trace.hits[0].rule is None


def test_goto_returns_to_the_caller_of_its_chain() -> None:
    table = build({"INPUT": [R("A"), R("ACCEPT")], "A": [R("B", goto=True), R("DROP")], "B": [R("")]}).table()
    assert paths(traced(table)) == ["INPUT 1 JUMP", "INPUT 1 > A 1 GOTO", "INPUT 1 > B 1", "INPUT 2 ACCEPT"]


def test_observed_matches_decide_the_path() -> None:
    table = build({
        "INPUT": [R("A", matches=(STATISTIC, COMMENT)), R("A", matches=(STATISTIC,)), R("DROP")], "A": [dnat()],
    }).table()  # fmt: skip
    first, second = (e.matches[0].at for e in table.rules("INPUT")[:2])
    target = table.rules("A")[0].target.at
    trace = traced(table, (first, FALSE), (second, TRUE), (target, TARGET))
    assert paths(trace) == ["INPUT 2 JUMP", "INPUT 2 > A 1 DNAT"]
    assert [v.evidence for v in trace.hits] == [Evidence.OBSERVED, Evidence.OBSERVED]


def test_a_missing_answer_of_a_match_follows_from_the_next_step() -> None:
    """A kretprobe can be missed; the target that was called next still shows the match's answer."""
    table = build({"INPUT": [R("DNAT", data=bytes(40), revision=2, matches=(LIMIT,)), R("ACCEPT")]}).table()
    rule = table.rules("INPUT")[0]
    assert paths(traced(table, (rule.matches[0].at, UNKNOWN), (rule.target.at, TARGET))) == ["INPUT 1 DNAT"]
    assert paths(traced(table, (rule.matches[0].at, UNKNOWN))) == ["INPUT 2 ACCEPT"]


def test_an_ambiguous_path_is_not_guessed() -> None:
    table = build({"INPUT": [R("ACCEPT", matches=(UNWATCHED,)), R("ACCEPT")]}).table()
    trace = traced(table)
    assert trace.undecided == "match bpf of rule 1 of INPUT was not observed and cannot be computed"
    assert [r.number for r in trace.possible] == [2, 1] or [r.number for r in trace.possible] == [1, 2]
    assert trace.decision is None


def test_the_verdict_decides_what_was_not_seen() -> None:
    table = build({"INPUT": [R("DROP", matches=(UNWATCHED,)), R("ACCEPT")]}).table()
    assert paths(traced(table)) == ["INPUT 2 ACCEPT"]
    assert paths(traced(table, verdict="DROP")) == ["INPUT 1 DROP"]


def test_the_jumps_that_were_seen_choose_between_paths() -> None:
    table = build({"INPUT": [R("A", matches=(UNWATCHED,)), R("A")], "A": [dnat()]}).table()
    one, two = (e.at for e in table.rules("INPUT"))
    target = (table.rules("A")[0].target.at, TARGET)
    assert traced(table, target).undecided
    assert paths(traced(table, target, jumps=(two, 77))) == ["INPUT 2 JUMP", "INPUT 2 > A 1 DNAT"]
    assert paths(traced(table, target, jumps=(one, 77))) == ["INPUT 1 JUMP", "INPUT 1 > A 1 DNAT"]


@pytest.mark.parametrize("steps", [(), ((8, TARGET),), ((8, TRUE), (8, TRUE))])
def test_contradicting_steps_have_no_path(steps: tuple[tuple[int, int], ...]) -> None:
    table = build({"INPUT": [dnat()]}).table()
    assert traced(table, *steps).undecided == "no path through these rules agrees with what was observed"


def test_a_verdict_that_no_rule_gives() -> None:
    assert traced(build({"INPUT": [R("ACCEPT")]}).table(), verdict="DROP").undecided
    assert traced(build({"INPUT": []}).table(), hook=3).undecided


def test_marks_are_followed() -> None:
    table = build({"INPUT": [mark(0x4000, 0x4000), R("DROP", matches=(marked(0x4001),)), R("ACCEPT")]}).table()
    step = (table.rules("INPUT")[0].target.at, TARGET)
    assert paths(traced(table, step)) == ["INPUT 1 MARK", "INPUT 3 ACCEPT"]
    assert paths(traced(table, step, packet=replace(PACKET, mark=1), verdict="DROP")) == ["INPUT 1 MARK", "INPUT 2 DROP"]


def test_steps_that_did_not_fit_into_the_table_trace() -> None:
    table = build({"INPUT": [R("", matches=(STATISTIC,)), R("", matches=(STATISTIC,)), R("ACCEPT")]}).table()
    first = table.rules("INPUT")[0].matches[0].at
    assert (
        traced(table, (first, TRUE), lost=1).undecided
        == "match statistic of rule 2 of INPUT was not observed and cannot be computed"
    )
    assert paths(traced(table, (first, TRUE), (table.rules("INPUT")[1].matches[0].at, FALSE)))[0] == "INPUT 1"


def test_too_many_paths() -> None:
    rules = [R("", matches=(UNWATCHED,)) for _ in range(400)]
    assert traced(build({"INPUT": rules}, policies={"INPUT": "DROP"}).table(), verdict="ACCEPT").undecided


UDP = replace(PACKET, protocol=17)
CONNLIMIT = ("connlimit", 1, bytes(40))


def udp(dport: int) -> tuple[str, int, bytes]:
    return "udp", 0, struct.pack("<HHHHB", 0, 0xFFFF, dport, dport, 0)


def hotdrop(trace: RuleTrace) -> str:
    """The rule with the match that dropped the packet, and the reason."""
    assert trace.decision and trace.decision.verdict == "DROP", trace
    return f"{trace.decision.location.chain} {trace.decision.location.number}: {trace.decision.hotdrop}"


def test_a_packet_too_short_for_a_match_is_dropped_there() -> None:
    table = build({"INPUT": [R(""), R("ACCEPT", protocol=17, matches=(udp(53),)), R("DROP")]}).table()
    trace = traced(table, packet=replace(UDP, shape=Shape.SHAPE_NO_PORTS), verdict="DROP")
    assert paths(trace) == ["INPUT 1", "INPUT 2 DROP"]
    assert hotdrop(trace) == "INPUT 2: the packet is too short for match udp (malformed)"
    assert trace.decision and trace.decision.evidence is Evidence.DERIVED
    assert traced(table, packet=replace(UDP, shape=Shape.SHAPE_NO_PORTS)).undecided, "it cannot have been accepted"
    assert paths(traced(table, packet=UDP, verdict="DROP")) == ["INPUT 1", "INPUT 3 DROP"]


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
def test_the_headers_that_each_match_needs(
    protocol: int, match: tuple[str, int, bytes], shape: int, dropped_there: bool
) -> None:
    packet = replace(PACKET, protocol=protocol, shape=shape, dport=80 if protocol == 6 else 53)
    table = build({"INPUT": [R("ACCEPT", protocol=protocol, matches=(match,)), R("DROP")]}).table()
    trace = traced(table, packet=packet, verdict="DROP")
    assert trace.decision and (bool(trace.decision.hotdrop), trace.decision.location.number) == (
        dropped_there,
        1 if dropped_there else 2,
    )


def test_a_fragment_that_begins_in_the_tcp_header() -> None:
    table = build({"INPUT": [R("ACCEPT", protocol=6, matches=(tcp(80),)), R("DROP")]}).table()
    second = replace(PACKET, fragment=True, shape=Shape.SHAPE_OFFSET_8)
    assert "fragment" in hotdrop(traced(table, packet=second, verdict="DROP"))
    assert paths(traced(table, packet=replace(second, shape=Shape.SHAPE_WHOLE), verdict="DROP")) == ["INPUT 2 DROP"]


def test_extension_headers_that_end_too_early() -> None:
    """The search for the protocol drops the packet, at the first rule that has a protocol and matching addresses."""
    rules = [R("ACCEPT", protocol=6, src="fd00::/16", inverted=0), R("ACCEPT"), R("DROP")]
    packet = replace(PACKET, family="ip6", src=0xFD01 << 112, shape=Shape.SHAPE_BROKEN)
    table = build({"INPUT": [*rules[:1], R("ACCEPT", protocol=17), *rules[1:]]}, "ip6").table()
    assert hotdrop(traced(table, packet=packet, verdict="DROP")).startswith("INPUT 2: the packet's IPv6 extension headers end")
    assert paths(traced(build({"INPUT": rules}, "ip6").table(), packet=packet)) == ["INPUT 2 ACCEPT"]


def test_a_protocol_that_is_not_known_is_not_guessed() -> None:
    packet = replace(PACKET, family="ip6", protocol=60, shape=Shape.SHAPE_UNKNOWN)
    table = build({"INPUT": [R("ACCEPT", protocol=6), R("ACCEPT")]}, "ip6").table()
    assert traced(table, packet=packet).undecided.startswith("the header that rule 1 of INPUT tests")
    certain = build({"INPUT": [R("DROP", protocol=6), R("ACCEPT")]}, "ip6").table()
    assert paths(traced(certain, packet=packet)) == ["INPUT 2 ACCEPT"]


def test_ports_that_could_not_be_read() -> None:
    table = build({"INPUT": [R("ACCEPT", protocol=6, matches=(tcp(80),)), R("ACCEPT")]}).table()
    packet = replace(PACKET, shape=Shape.SHAPE_ELSEWHERE)
    assert traced(table, packet=packet).undecided == "match tcp of rule 1 of INPUT was not observed and cannot be computed"


def test_a_watched_match_that_drops_a_packet() -> None:
    table = build({"INPUT": [R("ACCEPT", matches=(CONNLIMIT,)), R("ACCEPT", matches=(CONNLIMIT,)), R("DROP")]}).table()
    first, second = (e.matches[0].at for e in table.rules("INPUT")[:2])
    steps = ((first, FALSE), (second, FALSE))

    def reconstructed(hotdrop: int | None, *called: tuple[int, int]) -> RuleTrace:
        observed = TableObservation(called, 0, (), lambda extension: extension[1] == "connlimit", hotdrop)
        return reconstruct(table, lambda e: SavedRules(table, None)[e.at], 1, "DROP", PACKET, observed)

    trace = reconstructed(2, *steps)
    assert hotdrop(trace).startswith("INPUT 2: match connlimit could not look into the packet")
    assert trace.decision and trace.decision.evidence is Evidence.OBSERVED
    assert paths(reconstructed(0, *steps)) == ["INPUT 3 DROP"]
    assert reconstructed(None, *steps).undecided, "a capture without this field"
    assert hotdrop(reconstructed(1, steps[0])).startswith("INPUT 1:")
    assert hotdrop(reconstructed(1, (first, TRUE))).startswith("INPUT 1:"), (
        "the match answered true, and the packet is dropped at that rule all the same"
    )


def test_a_match_that_changes_the_mark() -> None:
    restore = ("socket", 3, bytes((4, 0, 0, 0)))
    rules = [R("", matches=(restore,)), R("ACCEPT", matches=(marked(7),)), R("ACCEPT")]
    table = build({"INPUT": rules}).table()
    first = table.rules("INPUT")[0].matches[0].at

    def reconstructed(answer: int, mark: int | None) -> RuleTrace:
        observed = TableObservation(((first, answer),), 0, (), lambda extension: extension[1] == "socket", 0, mark)
        return reconstruct(table, lambda e: SavedRules(table, None)[e.at], 1, "ACCEPT", PACKET, observed)

    assert reconstructed(TRUE, None).undecided == "match mark of rule 2 of INPUT was not observed and cannot be computed"
    assert paths(reconstructed(TRUE, 7)) == ["INPUT 1", "INPUT 2 ACCEPT"], (
        "nothing changes it later: it is the mark after the table"
    )
    assert paths(reconstructed(TRUE, 8)) == ["INPUT 1", "INPUT 3 ACCEPT"]
    assert paths(reconstructed(FALSE, 0)) == ["INPUT 3 ACCEPT"]
    assert reconstructed(FALSE, 9).undecided == "no path through these rules agrees with what was observed", (
        "no rule set it to 9"
    )


def test_the_mark_after_the_table_chooses_between_paths() -> None:
    table = build({"INPUT": [R("A", matches=(UNWATCHED,)), R("ACCEPT")], "A": [mark(5)]}).table()
    target = (table.rules("A")[0].target.at, TARGET)

    def reconstructed(steps: tuple[tuple[int, int], ...], mark_after: int) -> RuleTrace:
        observed = TableObservation(steps, 0, (), lambda extension: extension in WATCHED, 0, mark_after)
        return reconstruct(table, lambda e: SavedRules(table, None)[e.at], 1, "ACCEPT", PACKET, observed)

    assert paths(reconstructed((target,), 5))[-1] == "INPUT 2 ACCEPT"
    assert reconstructed((target,), 6).undecided


def test_addresses_that_a_target_changed() -> None:
    rules = [R("SNPT", data=bytes(40)), R("ACCEPT", src="fd00::/16"), R("ACCEPT")]
    packet = replace(PACKET, family="ip6", src=0xFD01 << 112)
    trace = traced(build({"INPUT": rules}, "ip6").table(), packet=packet)
    assert trace.undecided == "the header that rule 2 of INPUT tests was not observed and cannot be computed"


def test_an_unknown_mark_that_changes_again_is_not_the_mark_after_the_table() -> None:
    restore = R("CONNMARK", data=struct.pack("<IIIB", 0, 0xFFFFFFFF, 0xFFFFFFFF, 2) + bytes(3), revision=1)
    rules = [restore, R("A", matches=(marked(7),)), mark(9), R("ACCEPT")]
    table = build({"INPUT": rules, "A": [R("")]}).table()
    observed = TableObservation(
        ((table.rules("INPUT")[2].target.at, TARGET),), 0, (), lambda extension: extension in WATCHED, 0, 9
    )
    trace = reconstruct(table, lambda e: SavedRules(table, None)[e.at], 1, "ACCEPT", PACKET, observed)
    assert trace.undecided == "match mark of rule 2 of INPUT was not observed and cannot be computed"


INVALID, UNTRACKED = 1 << 0, 1 << 8
"""XT_CONNTRACK_STATE_*."""
CT = ("target", "CT", 2, "ip")


def has_state(state: int) -> tuple[str, int, bytes]:
    """Match conntrack with --ctstate."""
    return "conntrack", 3, bytes(146) + struct.pack("<HHHH", 1, 0, state, 0) + bytes(8)


@pytest.mark.parametrize(
    ("at_the_end", "called", "lost", "watched", "expected"),
    [
        # Target CT has assigned what the event shows: rule 1 saw something else.
        (UNTRACKED, True, 0, WATCHED | {CT}, ["INPUT 2 CT", "INPUT 0 ACCEPT"]),
        (INVALID, False, 0, WATCHED | {CT}, ["INPUT 0 ACCEPT"]),
        # It may have been called.
        (INVALID, False, 0, WATCHED, None), (INVALID, False, 1, WATCHED | {CT}, None),
    ],
)  # fmt: skip
def test_table_raw_may_assign_the_connection(
    at_the_end: int, called: bool, lost: int, watched: set[tuple[str, str, int, str]], expected: list[str] | None
) -> None:
    assign = R("CT", data=bytes(48), revision=2, in_face="eth0" if called else "eth9")
    table = build({"INPUT": [R("ACCEPT", matches=(has_state(UNTRACKED),)), assign]}, name="raw").table()
    steps = ((table.rules("INPUT")[1].target.at, TARGET),) if called else ()
    packet = replace(PACKET, connection=ConnectionView(at_the_end))
    trace = traced(table, *steps, packet=packet, lost=lost, watched=watched)
    assert (None if trace.undecided else paths(trace)) == expected


def test_table_raw_without_its_targets_keeps_the_connection() -> None:
    table = build({"INPUT": [R("ACCEPT", matches=(has_state(INVALID),))]}, name="raw").table()
    assert paths(traced(table, packet=replace(PACKET, connection=ConnectionView(INVALID)))) == ["INPUT 1 ACCEPT"]
