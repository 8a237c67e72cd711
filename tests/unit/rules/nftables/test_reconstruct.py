# SPDX-License-Identifier: Apache-2.0
"""The rule trace of a packet in a chain, computed from the records that the kernel writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.builders import NODE
from tracer.events import record
from tracer.events.nft_trace import NftHit, Trace
from tracer.events.record import Flag, Kind
from tracer.model.evidence import Evidence
from tracer.model.rule import Rule, RuleLocation, Ruleset, RuleTrace
from tracer.rules.nftables import reconstruct
from tracer.rules.nftables.snapshot import Snapshot
from tracer.rules.nftables.verdict_maps import CATCH_ALL, TIMEOUT, MapElement, VerdictMap

CONTINUE, JUMP, GOTO, RETURN = -1, -3, -4, -5
TABLE, BASE = 5, 0xFFFF0000
CHAINS = {
    "PREROUTING": (11, [101, 102]), "SERVICES": (12, [103, 104]), "MARK": (13, [105]), "SVC": (14, [106, 107]),
    "SEP": (15, [108]), "MAPPED": (16, [109]),
}  # fmt: skip
"""Handle of the chain, and of its rules in order."""
TARGETS = {
    101: "SERVICES",
    102: "MAPPED",
    103: "MARK",
    104: "SVC",
    105: "MARK",
    106: "RETURN",
    107: "SEP",
    108: "DNAT",
    109: "",
}
MAP = VerdictMap(
    12 << 6 | 13, 8, (MapElement(b"\x06\0\0\0\x76\x4d\0\0", "goto SEP"), MapElement(b"\x11\0\0\0\0\x35\0\0", "drop"))
)


def snapshot(number: int = 7, without: tuple[int, ...] = ()) -> Snapshot:
    chains = {
        ("ip", "nat", name): tuple(
            Rule("ip", "nat", name, place, f"text {handle}", "", TARGETS[handle], handle)
            for place, handle in enumerate(handles, 1)
            if handle not in without
        )
        for name, (_, handles) in CHAINS.items()
    }
    rules = {(TABLE, rule.handle): rule for rules in chains.values() for rule in rules}
    names = {(TABLE, handle): name for name, (handle, _) in CHAINS.items()}
    return Snapshot(Ruleset("nft", NODE, str(number), chains), number, rules, names, {(TABLE, 109): (MAP, 0)})


class Held:
    """The snapshots that have been read."""

    def __init__(self, *snapshots: Snapshot) -> None:
        self._snapshots = snapshots

    def find(self, inode: int, generation: int) -> Snapshot | None:
        return next((s for s in self._snapshots if s.number == generation and inode == NODE), None)

    def near(self, inode: int) -> list[Snapshot]:
        return [s for s in self._snapshots if inode == NODE]


def hit(handle: int, code: int, to: str = "", trace: str = "RULE", generation: int = 7, **more: Any) -> Any:
    fields = {
        "kind": Kind.EVENT_NFT_RULE, "object": BASE, "netns": NODE, "generation": generation, "handle": handle,
        "code": code & 0xFFFFFFFF, "trace": Trace["TRACE_" + trace], "table_handle": TABLE, "family": 2, "policy": 1,
        "to": to.encode(), "to_handle": CHAINS[to][0] if to in CHAINS else 0, "registers": b"", "flags": 0,
    }  # fmt: skip
    return NftHit(**{**dict.fromkeys(NftHit._fields, 0), **fields, **more})


def end() -> Any:
    return hit(0, CONTINUE, trace="RETURN")


def policy(verdict: int = 1) -> Any:
    return hit(0, CONTINUE, trace="POLICY", policy=verdict)


def chain(verdict: int = 1, **more: Any) -> Any:
    fields = {"kind": Kind.EVENT_CHAIN, "object": BASE, "netns": NODE, "verdict": verdict, "table": b"nat",
              "chain": b"PREROUTING", "flags": 0}  # fmt: skip
    return record.Event(**{**dict.fromkeys(record.Event._fields, 0), **fields, **more})


def rule_trace(*hits: Any, verdict: int = 1, held: Held | None = None, whole: bool = True) -> RuleTrace:
    return reconstruct.reconstruct(chain(verdict), reconstruct.ChainRun(list(hits)), held or Held(snapshot()), whole)


def paths(found: RuleTrace) -> list[str]:
    return [" > ".join(f"{p.chain} {p.number}" for p in v.path) + ": " + v.verdict for v in found.hits]


def test_the_rule_trace_to_a_service() -> None:
    found = rule_trace(
        hit(101, JUMP, "SERVICES"), hit(103, JUMP, "MARK"), hit(105, CONTINUE), end(), hit(104, GOTO, "SVC"),
        hit(107, JUMP, "SEP"), hit(108, 1),
    )  # fmt: skip
    assert paths(found) == [
        "PREROUTING 1: JUMP SERVICES",
        "PREROUTING 1 > SERVICES 1: JUMP MARK",
        "PREROUTING 1 > SERVICES 1 > MARK 1: MARK",
        "PREROUTING 1 > SERVICES 2: GOTO SVC",
        "PREROUTING 1 > SERVICES 2 > SVC 2: JUMP SEP",
        "PREROUTING 1 > SERVICES 2 > SVC 2 > SEP 1: DNAT",
    ]
    assert found.undecided == "" and found.decision and found.decision.rule and found.decision.rule.text == "text 108"
    assert {v.evidence for v in found.hits} == {Evidence.OBSERVED}


def test_a_goto_does_not_return() -> None:
    """At the end of SVC the rule trace goes on after the jump to SERVICES."""
    found = rule_trace(hit(101, JUMP, "SERVICES"), hit(104, GOTO, "SVC"), end(), hit(102, JUMP, "MAPPED"), end(), policy())
    assert paths(found)[2:] == ["PREROUTING 2: JUMP MAPPED", "PREROUTING 0: ACCEPT"]


@pytest.mark.parametrize("trace", ["RETURN", "RULE"])
def test_a_return_is_recorded_in_two_ways(trace: str) -> None:
    """Newer kernels record a return, and the end of a chain, as a rule."""
    over = hit(0, CONTINUE, trace=trace)
    found = rule_trace(
        hit(101, JUMP, "SERVICES"), hit(104, JUMP, "SVC"), hit(106, RETURN, trace=trace), over, over, policy(0), verdict=0
    )
    assert paths(found)[2:] == ["PREROUTING 1 > SERVICES 2 > SVC 1: RETURN", "PREROUTING 0: DROP"]
    assert found.decision and found.decision.rule is None and not found.undecided


def test_the_element_of_a_verdict_map() -> None:
    found = rule_trace(hit(102, JUMP, "MAPPED"), hit(109, GOTO, "SEP", registers=b"\x06\0\0\0\x76\x4d"), hit(108, 1))
    assert found.hits[1].element == "tcp . 30285 : goto SEP"
    found = rule_trace(hit(102, JUMP, "MAPPED"), hit(109, 0, registers=b"\x11\0\0\0\0\x35"), verdict=0)
    assert (found.hits[1].element, found.hits[1].verdict) == ("udp . 53 : drop", "DROP")
    assert rule_trace(hit(102, JUMP, "MAPPED"), hit(109, 0), verdict=0).hits[1].element == ""


@pytest.mark.parametrize(("code", "to", "element"), [(GOTO, "SEP", "tcp . 30285 : goto SEP"), (JUMP, "SEP", ""), (0, "", "")])
def test_a_map_of_another_generation_is_used_where_it_agrees(code: int, to: str, element: str) -> None:
    lookup = hit(109, code, to, registers=b"\x06\0\0\0\x76\x4d", generation=0)
    rule_hit = rule_trace(hit(102, JUMP, "MAPPED", generation=0), lookup).hits[1]
    assert (rule_hit.element, rule_hit.evidence) == (element, Evidence.DERIVED)


def test_names_of_verdicts() -> None:
    rules = snapshot()
    reject = replace(rules.rules[TABLE, 101], target="REJECT")
    held = Held(replace(rules, rules={(TABLE, 101): reject}))
    assert rule_trace(hit(101, 0), verdict=0, held=held).hits[0].verdict == "REJECT"
    assert rule_trace(hit(109, 3 | 5 << 16), verdict=3).hits[0].verdict == "QUEUE"
    assert rule_trace(hit(109, 3 | 65535 << 16), verdict=3).hits[0].verdict == "QUEUE"


def effect(target: str, code: int, matches: tuple[str, ...] = (), flags: int = 0, in_map: bool = False) -> tuple[str, str]:
    """The verdict that is shown for rule 101, and the reason if one of its matches dropped the packet."""
    rules, key = snapshot(), (TABLE, 101)
    changed = {key: replace(rules.rules[key], target=target)}
    held = replace(rules, rules=changed, hotdrop_matches={key: matches}, lookups={key: (MAP, 0)} if in_map else {})
    run = reconstruct.ChainRun([hit(101, code)])
    rule_hit = reconstruct.reconstruct(chain(code & 0xFF, flags=flags), run, Held(held)).hits[0]
    return rule_hit.verdict, rule_hit.hotdrop


@pytest.mark.parametrize("target", ["MARK", "LOG", "ACCEPT", "RETURN", "SERVICES", "NFQUEUE", "DNAT", ""])
def test_a_target_is_never_shown_for_a_drop_that_it_cannot_have_made(target: str) -> None:
    """A verdict map after `meta mark set` may drop the packet, and a match of iptables may hotdrop it."""
    verdict, why = effect(target, 0, ("multiport",))
    assert verdict == "DROP" and ("match multiport could not look into the packet" in why) == (target != "DNAT")
    assert effect(target, 0) == ("DROP", "")


def test_a_rule_that_may_drop_in_two_ways() -> None:
    """REJECT is recognised by its answer. If none was seen and something else may have dropped the packet, neither is shown."""
    assert effect("REJECT", 0) == ("REJECT", "")
    assert effect("REJECT", 0, ("multiport",)) == effect("REJECT", 0, in_map=True) == ("DROP", "")
    assert effect("REJECT", 0, ("multiport",), Flag.FLAG_REJECT) == ("REJECT", "")
    assert effect("DROP", 0, ("multiport",)) == ("DROP", "")


@pytest.mark.parametrize(
    ("target", "code", "verdict"),
    [("MARK", 1, "ACCEPT"), ("DUP", 1, "ACCEPT"), ("MASQUERADE", 1, "MASQUERADE"), ("FWD", 2, "FWD"),
     ("SYNPROXY", 2, "SYNPROXY"), ("NFQUEUE", 3 | 7 << 16, "NFQUEUE"), ("MARK", CONTINUE, "MARK"), ("services", 0, "DROP")],
)  # fmt: skip
def test_a_target_is_shown_for_what_it_does(target: str, code: int, verdict: str) -> None:
    assert effect(target, code) == (verdict, "")


def test_a_generation_that_was_not_read() -> None:
    found = rule_trace(hit(101, JUMP, "SERVICES", generation=8), hit(104, 1, generation=8), held=Held())
    assert found.undecided == "the rules of generation 8 could not be read in time" and found.decision is None
    assert [(v.location, v.rule and v.rule.handle) for v in found.hits] == [
        (RuleLocation("PREROUTING", reconstruct.UNKNOWN_NUMBER), 101),
        (RuleLocation("SERVICES", reconstruct.UNKNOWN_NUMBER), 104),
    ]


def test_a_neighbouring_generation_knows_the_rule() -> None:
    """A handle is never reused, so the text is the rule's; its position may have changed."""
    found = rule_trace(hit(101, JUMP, "SERVICES", generation=8), hit(104, 1, generation=8))
    assert not found.undecided and [v.evidence for v in found.hits] == [Evidence.DERIVED] * 2
    assert found.decision and found.decision.rule and found.decision.rule.text == "text 104"


def test_a_rule_that_is_not_in_its_generation() -> None:
    found = rule_trace(hit(101, 1), held=Held(snapshot(without=(101,))))
    assert found.undecided == "the rules of generation 7 do not contain it"


def test_records_that_do_not_fit_together() -> None:
    assert rule_trace(hit(103, 1)).undecided == "rule 103 is in SERVICES, but the rule trace is in PREROUTING"
    assert rule_trace(hit(101, JUMP, "SERVICES")).undecided == "the rules that acted were not seen"
    assert rule_trace(hit(101, JUMP, "SERVICES"), whole=False).undecided == "a part of the rule trace was lost"
    assert rule_trace(hit(101, 1), verdict=0).undecided == "the rules that acted were not seen"
    assert rule_trace(whole=False).undecided


def grouped(*events: Any) -> list[list[Any]]:
    """The hits of each run, in the order of the EVENT_CHAINs that ended them. Events get their times by their order, and
    their hop numbers if they have none."""
    timed = [e._replace(time=at, hop=e.hop or at) for at, e in enumerate(events, 1)]
    found = reconstruct.runs(timed)
    back = dict(zip(timed, events, strict=True))
    return [[back[hit] for hit in found[reconstruct.run_key(e)].hits] for e in timed if e.kind == Kind.EVENT_CHAIN]


def test_runs_are_separated_by_their_chain() -> None:
    other: dict[str, Any] = {"object": BASE + 8}
    first, second, third = hit(101, 1), hit(102, 1, **other), hit(104, 1)
    found = grouped(first, chain(), second, chain(**other), third, chain(), chain())
    assert found == [[first], [second], [third], []]


def in_run(address: int) -> dict[str, Any]:
    return {"accept_len": address & 0xFFFFFFFF, "accept_max": address >> 32}


def test_a_run_within_a_run_of_the_same_chain() -> None:
    """A copy goes through POSTROUTING within the rule that made it, and numbers its hops as the original does."""
    inner, outer = 0xFFFFC90000001100, 0xFFFFC90000002200
    copied = hit(101, 1, run=inner, flags=Flag.FLAG_CLONE, hop=4)
    original = [hit(102, JUMP, "MAPPED", run=outer, hop=4), hit(109, 0, run=outer, hop=5)]
    ends = chain(1, hop=6, flags=Flag.FLAG_CLONE, **in_run(inner)), chain(0, hop=6, **in_run(outer))
    assert grouped(copied, ends[0], *original, ends[1]) == [[copied], original]
    assert grouped(original[0], copied, original[1], ends[1], ends[0]) == [original, [copied]]


def test_runs_of_one_packet_inside_each_other() -> None:
    """A packet that is sent on by `fwd` meets the chains of the next device within the run that sent it."""
    before, within, after = hit(101, JUMP, "SVC", run=1), hit(102, 1, run=2), hit(106, 2, run=1)
    found = grouped(before, within, chain(**in_run(2)), after, chain(2, **in_run(1)))
    assert found == [[within], [before, after]]


def test_a_run_that_ended_without_its_event_does_not_join_the_next() -> None:
    """The next run has its packet info at the same place on the stack."""
    taken, first, second = hit(101, 2, run=1), hit(101, JUMP, "SVC", run=1), hit(107, 1, run=1)
    assert grouped(taken, first, second, chain(**in_run(1))) == [[first, second]]


def test_a_run_of_which_a_record_is_missing() -> None:
    run = [hit(101, JUMP, "SERVICES", hop=3, run=1), hit(104, 1, hop=5, run=1)]
    ended = chain(1, hop=6, time=9, **in_run(1))
    found = reconstruct.runs([*run, ended])[reconstruct.run_key(ended)]
    assert not found.is_whole
    assert reconstruct.reconstruct(ended, found, Held(snapshot()), False).undecided == "a part of the rule trace was lost"
    known = reconstruct.runs([run[0], chain(1, hop=4, object=8, **in_run(2)), run[1], ended])
    assert known[reconstruct.run_key(ended)].is_whole


def test_a_chain_name_that_was_cut_short() -> None:
    long = "service-" + "x" * 200
    rules = snapshot()
    held = Held(replace(rules, chains={**rules.chains, (TABLE, 99): long}))
    found = rule_trace(hit(101, JUMP, long[:95], to_handle=99), end(), policy(), held=held)
    assert found.hits[0].verdict == "JUMP " + long


LONG_BASE, LONG_TABLE = "base-" + "é" * 60, "table-" + "x" * 100


def long_names() -> Held:
    """The same rules; the names of the base chain and of the table are too long for a record."""
    rules = snapshot()
    moved = {key: replace(rule, chain=LONG_BASE) if rule.chain == "PREROUTING" else rule for key, rule in rules.rules.items()}
    names = {**rules.chains, (TABLE, 11): LONG_BASE}
    return Held(replace(rules, rules=moved, chains=names, tables={TABLE: LONG_TABLE}))


def long_chain() -> Any:
    return chain(1, chain=LONG_BASE.encode()[:31], table=LONG_TABLE.encode()[:31], manip=3)


def test_names_that_are_too_long_for_an_event_are_found_by_handle() -> None:
    run = reconstruct.ChainRun([hit(101, JUMP, "SERVICES", chain_handle=11), end(), policy()])
    run.hits = [h._replace(chain_handle=11) for h in run.hits]
    found = reconstruct.reconstruct(long_chain(), run, long_names())
    assert not found.undecided and paths(found) == [f"{LONG_BASE} 1: JUMP SERVICES", f"{LONG_BASE} 0: ACCEPT"]
    assert reconstruct.hop_names(long_chain(), run, long_names()) == (LONG_TABLE, LONG_BASE)


def test_a_cut_name_is_never_compared_as_a_whole_name() -> None:
    run = reconstruct.ChainRun([hit(101, JUMP, "SERVICES"), end(), policy()])
    found = reconstruct.reconstruct(long_chain(), run, long_names())
    assert not found.undecided and paths(found)[0] == f"{LONG_BASE} 1: JUMP SERVICES"
    assert reconstruct.hop_names(long_chain(), run, Held()) == ("", "")
    alone = reconstruct.reconstruct(long_chain(), reconstruct.ChainRun([policy()]), Held())
    assert paths(alone) == ["base-" + "é" * 13 + "… 0: ACCEPT"]
    other = replace(snapshot(), chains={(TABLE, 11): "another"}, tables={TABLE: "another"})
    assert reconstruct.hop_names(long_chain(), run, Held(other)) == ("", "")


def shown_element(verdicts: VerdictMap, code: int, to: str = "", taken: int = 0, time: int = 0, generation: int = 7) -> str:
    """The element that is shown for protocol 6, port 30285."""
    held = Held(replace(snapshot(), lookups={(TABLE, 109): (verdicts, 0)}, taken=taken))
    lookup = hit(109, code, to, registers=b"\x06\0\0\0\x76\x4d", time=time, generation=generation)
    return rule_trace(hit(102, JUMP, "MAPPED", generation=generation), lookup, held=held).hits[1].element


def timing_out(verdict: str, otherwise: str) -> VerdictMap:
    """A map with an element that times out; later its catch-all element answers."""
    elements = MapElement(MAP.elements[0].key, verdict, times_out=True), MapElement(b"", otherwise, flags=CATCH_ALL)
    return VerdictMap(MAP.key_type, MAP.key_length, elements, TIMEOUT)


def test_an_element_that_may_have_timed_out() -> None:
    """It is shown only if no other element could have given the verdict."""
    assert shown_element(timing_out("goto SEP", "goto SEP"), GOTO, "SEP", taken=5, time=9) == ""
    assert shown_element(timing_out("goto SEP", "drop"), GOTO, "SEP", taken=5, time=9) == "tcp . 30285 : goto SEP"
    assert shown_element(timing_out("goto SEP", "drop"), 0, taken=5, time=9) == "* : drop"


@pytest.mark.parametrize(("taken", "element"), [(5, "* : drop"), (10, ""), (0, "")])
def test_a_wildcard_is_not_shown_for_a_time_before_its_map_was_read(taken: int, element: str) -> None:
    """An element may have answered and have timed out before the map was read."""
    gone = VerdictMap(MAP.key_type, MAP.key_length, (MapElement(b"", "drop", flags=CATCH_ALL),), TIMEOUT)
    assert shown_element(gone, 0, taken=taken, time=9) == element
    assert shown_element(replace(gone, flags=0), 0, taken=taken, time=9) == "* : drop"


def test_a_wildcard_of_another_generation_is_not_shown() -> None:
    one = VerdictMap(MAP.key_type, MAP.key_length, (MapElement(b"", "drop", flags=CATCH_ALL),))
    assert shown_element(one, 0, generation=8) == ""


def test_rules_of_a_namespace_that_had_the_same_inode() -> None:
    """The numbers of tables, rules and generations start again in each namespace; only its cookie is never reused."""
    same = rule_trace(hit(101, 1, cookie=5), held=Held(snapshot()))
    assert same.undecided == "the rules of generation 7 could not be read in time"
    assert reconstruct.generations([hit(101, 1, cookie=5)]) == {(5 << 32 | NODE, 7)}
