# SPDX-License-Identifier: Apache-2.0
"""A rule that rewrites the source and finds no free port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support import findings as f
from tests.support.syns import AFTER_DNAT, INSIDE, REQUESTED, decision_detail, packet
from tracer.findings import Findings
from tracer.findings.context import FindingContext
from tracer.kube.attribution import attribute
from tracer.kube.catalog import ClusterView
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding
from tracer.model.handshake import Cause, ConnectionAttempt, HandshakeVerdict
from tracer.model.hop import Drop, DropHop, Hop, Nat, NatHop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.rule import RuleHit, RuleLocation, RuleTrace
from tracer.rules import save_parser

RANGE = "-A POSTROUTING -d 10.244.0.11/32 -p tcp -j MASQUERADE --to-ports 40000-40001"
LOST = Cause("conntrack race lost", "dropped: its connection was not put into conntrack's table", Evidence.OBSERVED)


def snat(line: str) -> NatHop:
    rules = save_parser.parse(f"*nat\n{line}\n")
    (rule,) = (r for chain in rules.chains.values() for r in chain)
    hit = RuleHit((RuleLocation(rule.chain, 1),), rule, rule.target, Evidence.OBSERVED)
    return NatHop(
        2, HOST, Hook.POSTROUTING, nat=Nat("MASQUERADE", AFTER_DNAT, INSIDE), rule_trace=RuleTrace((hit,), ruleset=rules)
    )


def found(hops: Sequence[Hop], again: int, cause: Cause = LOST) -> list[Finding]:
    first = NatHop(1, HOST, Hook.PREROUTING, nat=Nat("DNAT", REQUESTED, AFTER_DNAT))
    drop = DropHop(9, HOST, drop=Drop("NETFILTER_DROP", "nf_hook_slow"), verdict=Verdict.DROP)
    syn = attribute(packet(REQUESTED, "SYN", [first, *hops, decision_detail("confirm", 8, HOST), drop]), ClusterView())
    findings, attempt = Findings(FindingContext(ClusterView(), f.FakeNode())), ConnectionAttempt(syn, 0)
    findings.look_syn(HandshakeVerdict(1, 0, REQUESTED, INSIDE, HOST, cause, again, attempt=attempt))
    return findings.all


def test_repeated_syns_of_one_connection() -> None:
    (finding,) = found([snat(RANGE)], 2)
    assert finding.name == "snat_ports_exhausted" and finding.certain
    assert finding.cause == (
        "The rule of the administrator that rewrites the source of connections from 192.168.56.1 to 10.244.0.11:8080 finds no"
        " free port of its range 40000-40001 at 10.244.0.1: the SYN got 10.244.0.1:23711, which another connection has, and"
        " conntrack dropped it."
    )
    assert f.proofs(finding, "counter") == ["3 SYNs of this connection were dropped so (observed)"]
    assert "--to-ports 40000-40001" in f.proofs(finding, "rule")[0]


@pytest.mark.parametrize("again", [0, 1])
def test_one_drop_may_be_a_race(again: int) -> None:
    (finding,) = found([snat(RANGE)], again)
    assert not finding.certain and "perhaps finds no free port" in finding.cause


@pytest.mark.parametrize(
    ("line", "of"),
    [
        ("-A POSTROUTING -j MASQUERADE", "no free port at"),
        ("-A POSTROUTING -j MASQUERADE --random-fully", "no free port at"),
        ("-A POSTROUTING -p tcp -j SNAT --to-source 10.244.0.1:5000-5009", "no free port of its range 5000-5009 at"),
        ("-A POSTROUTING -p tcp -j SNAT --to-source 10.244.0.1", "no free port at"),
    ],
)
def test_the_range_of_the_rule(line: str, of: str) -> None:
    (finding,) = found([snat(line)], 2)
    assert of in finding.cause


def test_without_a_new_source_it_is_another_conflict() -> None:
    assert found([], 2) == []


def test_a_translation_that_conntrack_repeats_chooses_no_port() -> None:
    assert found([replace(snat(RANGE), from_conntrack=True)], 2) == []


def test_another_cause_is_no_finding() -> None:
    assert found([snat(RANGE)], 2, Cause("dropped by rule", "", Evidence.OBSERVED)) == []
