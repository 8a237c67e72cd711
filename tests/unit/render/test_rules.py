# SPDX-License-Identifier: Apache-2.0
"""Rules in the output: the rule that decided, its chain path, and the text for an unknown rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.support import sample_packets as samples
from tests.support.terminal import Terminal
from tests.unit.render.test_json import line
from tests.unit.render.test_text import written
from tracer.model.evidence import Evidence
from tracer.model.hop import trace_of
from tracer.model.packet import Packet
from tracer.model.rule import Rule, RuleHit, RuleLocation, RuleTrace
from tracer.util.frozen import evolve

TEXT = '-p tcp -m comment --comment "default/http-proxy:http" -m tcp -j DNAT --to-destination 10.244.0.11:8080'
PATH = (RuleLocation("PREROUTING", 1), RuleLocation("KUBE-SERVICES", 2), RuleLocation("KUBE-SEP-X", 1))
DNAT = Rule("ip", "nat", "KUBE-SEP-X", 1, TEXT, "default/http-proxy:http", "DNAT")
JUMP = Rule("ip", "nat", "PREROUTING", 1, "-j KUBE-SERVICES", "", "KUBE-SERVICES")
MARK = Rule("ip", "nat", "KUBE-SERVICES", 1, "-j MARK --set-xmark 0x4000/0x4000", "", "MARK")
TRACE = RuleTrace((
    RuleHit(PATH[:1], JUMP, "JUMP", Evidence.DERIVED),
    RuleHit((PATH[0], RuleLocation("KUBE-SERVICES", 1)), MARK, "MARK", Evidence.OBSERVED),
    RuleHit(PATH, DNAT, "DNAT", Evidence.OBSERVED),
))  # fmt: skip
POLICY = RuleTrace((RuleHit((RuleLocation("FORWARD", 0),), None, "DROP", Evidence.DERIVED),))
UNKNOWN = RuleTrace(possible=(DNAT, JUMP), undecided="match bpf was not observed and cannot be computed")


def explained(trace: RuleTrace, what: str = "nat", **more: Any) -> Packet:
    """The NodePort request; its first hop of that kind has the rule trace."""
    packet = samples.node_port()
    at = next(i for i, h in enumerate(packet.hops) if h.kind == what)
    hop = evolve(packet.hops[at], rule_trace=trace, **more)
    return replace(packet, hops=(*packet.hops[:at], hop, *packet.hops[at + 1 :]))


def rules(packet: Packet, verbose: bool = False) -> list[str]:
    hops = tuple(evolve(h, rule_trace=None) if trace_of(h) else h for h in packet.hops)
    plain = written(replace(packet, hops=hops), verbose)
    return [text.strip() for text in written(packet, verbose) if text not in plain]


def test_the_rule_is_under_the_hop_that_it_caused() -> None:
    assert rules(explained(TRACE)) == ["PREROUTING 1 > KUBE-SERVICES 2 > KUBE-SEP-X 1", TEXT]


def test_every_hop_has_all_rules_that_acted() -> None:
    assert rules(explained(TRACE, "table"), verbose=True) == [
        "PREROUTING 1 > KUBE-SERVICES 1",
        "-j MARK --set-xmark 0x4000/0x4000",
        "PREROUTING 1 > KUBE-SERVICES 2 > KUBE-SEP-X 1",
        TEXT,
    ]
    assert rules(explained(TRACE, "table")) == [], "a table that accepted decided nothing"


def test_a_policy() -> None:
    assert rules(explained(POLICY)) == ["FORWARD policy  (derived)"]


def test_a_decision_from_conntrack() -> None:
    later = explained(TRACE, from_conntrack=True)
    assert rules(later) == ["from conntrack, decided by KUBE-SEP-X 1"]
    path = "PREROUTING 1 > KUBE-SERVICES 2 > KUBE-SEP-X 1"
    assert rules(later, verbose=True) == [f"from conntrack, decided by {path}: {TEXT}"]
    before = RuleTrace(undecided="decided before tracing began")
    assert rules(explained(before, from_conntrack=True)) == ["from conntrack, decided before tracing began"]


def test_an_unknown_rule() -> None:
    assert rules(explained(UNKNOWN)) == [
        "rule not known: match bpf was not observed and cannot be computed",
        f"perhaps KUBE-SEP-X 1: {TEXT}",
        "perhaps PREROUTING 1: -j KUBE-SERVICES",
    ]


def test_a_rule_without_text() -> None:
    trace = RuleTrace((RuleHit(PATH, replace(DNAT, text=""), "DNAT", Evidence.OBSERVED),))
    assert rules(explained(trace))[1] == "DNAT (its text could not be read)"


def test_comments_cannot_control_the_terminal() -> None:
    evil = replace(DNAT, text="-m comment --comment \x1b[2J", chain="A\x1b[1m")
    trace = RuleTrace((RuleHit((RuleLocation("A\x1b[1m", 1),), evil, "DNAT", Evidence.OBSERVED),))
    assert rules(explained(trace)) == ["A\\x1b[1m 1", "-m comment --comment \\x1b[2J"]


def test_long_chain_paths_are_folded() -> None:
    lines = written(explained(TRACE), out=Terminal())
    assert any("KUBE-SEP-X" in text for text in lines)


def test_a_rule_trace_in_json() -> None:
    hop = next(h for h in line(explained(TRACE, from_conntrack=True))["hops"] if h["what"] == "nat")
    assert hop["chain_path"] == "PREROUTING 1 > KUBE-SERVICES 2 > KUBE-SEP-X 1"
    assert hop["rule"] == {
        "chain": "KUBE-SEP-X", "number": 1, "text": TEXT, "comment": "default/http-proxy:http", "target": "DNAT",
    }  # fmt: skip
    assert [(v["verdict"], v["evidence"]) for v in hop["acted"]] == [
        ("JUMP", "derived"), ("MARK", "observed"), ("DNAT", "observed"),
    ]  # fmt: skip
    assert hop["from_conntrack"] is True and "undecided" not in hop


def test_a_policy_and_an_unknown_rule_in_json() -> None:
    hop = next(h for h in line(explained(POLICY))["hops"] if h["what"] == "nat")
    assert hop["chain_path"] == "FORWARD policy" and "rule" not in hop
    hop = next(h for h in line(explained(UNKNOWN))["hops"] if h["what"] == "nat")
    assert hop["undecided"] == UNKNOWN.undecided and [r["chain"] for r in hop["possible"]] == ["KUBE-SEP-X", "PREROUTING"]
    assert "chain_path" not in hop and "from_conntrack" not in hop


def test_a_rule_with_a_hotdrop() -> None:
    why = "the packet is too short for match udp (malformed)"
    rule = Rule("ip", "filter", "FORWARD", 1, "-p udp -m udp --dport 53 -j ACCEPT", "", "ACCEPT")
    trace = RuleTrace((RuleHit((RuleLocation("FORWARD", 1),), rule, "DROP", Evidence.DERIVED, hotdrop=why),))
    packet = explained(trace, "table", verdict="DROP")
    assert rules(packet) == [
        "FORWARD 1  (derived)",
        f"dropped here because {why}; the rule's target did not act",
        "-p udp -m udp --dport 53 -j ACCEPT",
    ]
    hop = next(h for h in line(packet)["hops"] if "hotdrop" in h)
    assert hop["hotdrop"] == hop["acted"][0]["hotdrop"] == why
