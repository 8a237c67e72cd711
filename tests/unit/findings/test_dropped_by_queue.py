# SPDX-License-Identifier: Apache-2.0
"""Packets that the process behind a queue does not let pass: policies that select the pods are candidates."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import findings as f
from tests.support.policies import Object, cluster, pod, policy
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding
from tracer.model.hop import QUEUE_ANSWER, DecisionDetail, DetailHop, Drop, DropHop, HookHop, Hop, Nat, NatHop, TableHop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.rule import RuleHit, RuleLocation, RuleTrace
from tracer.packets.outcome import classify
from tracer.packets.queue_details import ENDED, INTERFACE_DOWN, PROCESS, RULES_REMOVED
from tracer.rules.nftables import json_parser

WEB, CLIENT = pod("shop/web", "10.0.0.1", app="web"), pod("shop/client", "10.0.0.2", app="client")
ENDS = Endpoints("10.0.0.2", 40000, "10.0.0.1", 8080)
DENY = policy("shop/deny-all")
TABLE = "kube-network-policies"
QUEUE = {"queue": {"num": 100}}


def decided(expression: dict[str, Any], table: str) -> TableHop:
    """A rule of a chain of nftables that decided."""
    row = {"family": "inet", "table": table, "chain": "postrouting", "handle": 1, "expr": [expression]}
    rules = json_parser.parse(json.dumps({"nftables": [{"rule": row}]})).ruleset
    (rule,) = rules.chain("inet", table, "postrouting")
    hit = RuleHit((RuleLocation("postrouting", 1),), rule, rule.target, Evidence.OBSERVED)
    trace, verdict = RuleTrace((hit,), ruleset=rules), Verdict.QUEUE if "queue" in expression else Verdict.ACCEPT
    return TableHop(0, HOST, Hook.POSTROUTING, table=table, verdict=verdict, rule_trace=trace)


def found(
    *items: Object,
    table: str = TABLE,
    function: str = "nfqnl_reinject",
    reason: str = "NOT_SPECIFIED",
    expression: dict[str, Any] = QUEUE,
    since: tuple[Hop, ...] = (),
) -> list[Finding]:
    """since: what was seen of the packet after the queue took it."""
    drop = DropHop(0, HOST, verdict=Verdict.DROP, drop=Drop(reason, function))
    hops: list[Hop] = [decided(expression, table), HookHop(0, HOST, Hook.POSTROUTING, verdict=Verdict.STOLEN), *since, drop]
    made = f.findings_of([f.packet(hops, ENDS)], cluster(*items), f.FakeNode())[1]
    return [x for x in made if x.name == "dropped_by_queue"]


def test_candidates_that_do_not_allow_it() -> None:
    (finding,) = found(WEB, CLIENT, DENY)
    assert "does not let tcp 8080 from pod shop/client to pod shop/web pass: a rule of kube-network-policies" in finding.cause
    assert not finding.certain and "when a later function of the same hook drops the packet. What" in finding.cause
    assert finding.cause.endswith(
        "What kube-network-policies decides by is not seen, so the policy, if one decides, is unknown: candidate is"
        " NetworkPolicy shop/deny-all (ingress of web), which by the objects of the API does not allow it."
    )
    assert f.proofs(finding, "object") == [
        "NetworkPolicy shop/deny-all, ingress of pod web: it has no ingress rule (Kubernetes API)"
    ]
    assert "`kubectl get networkpolicies -n shop -o yaml`" in finding.check


def test_another_program_has_no_policies() -> None:
    (finding,) = found(WEB, CLIENT, DENY, table="inspector")
    assert "policy" not in finding.cause.lower() and not f.proofs(finding, "object") and "intrusion detection" in finding.cure


@pytest.mark.parametrize("function", ["nf_reinject", "nfqnl_recv_verdict", "nfqnl_reinject.isra.0"])
def test_functions_of_other_kernels(function: str) -> None:
    assert len(found(WEB, CLIENT, function=function, reason="")) == 1


@pytest.mark.parametrize(
    ("function", "reason", "expression"),
    [
        ("nf_queue", "NOT_SPECIFIED", QUEUE),
        ("nfqnl_reinject", "NETFILTER_DROP", QUEUE),
        ("nfqnl_reinject", "", {"accept": None}),
    ],
)
def test_other_drops(function: str, reason: str, expression: dict[str, Any]) -> None:
    assert found(WEB, CLIENT, DENY, function=function, reason=reason, expression=expression) == []


@pytest.mark.parametrize(
    "hop",
    [
        DetailHop(0, HOST, detail=DecisionDetail("table-full", {})),
        TableHop(0, HOST, Hook.POSTROUTING, table="nat", verdict=Verdict.ACCEPT),
        NatHop(0, HOST, Hook.POSTROUTING, nat=Nat("SNAT", ENDS, ENDS)),
    ],
)
def test_a_packet_that_came_back_from_the_queue(hop: Hop) -> None:
    """The functions of a hook that follow the queue are called, and free packets, in the same function of the kernel."""
    assert found(WEB, CLIENT, DENY, since=(hop,)) == []
    drop = DropHop(0, HOST, verdict=Verdict.DROP, drop=Drop("NOT_SPECIFIED", "nfqnl_reinject"))
    held = HookHop(0, HOST, Hook.POSTROUTING, verdict=Verdict.STOLEN)
    ways: tuple[list[Hop], list[Hop]] = [held, hop, drop], [held, drop]
    came_back, did_not = (classify(f.packet(hops, ENDS))[0] for hops in ways)
    assert came_back == "DROPPED in nfqnl_reinject: NOT_SPECIFIED" and did_not.startswith("DROPPED behind a queue (NFQUEUE): ")


def answered(verdict: str, by: str = "") -> DetailHop:
    facts: dict[str, int | str] = {"queue": 100, "verdict": verdict, "waited_ns": 1_200_000}
    facts |= {"by": by} if by else {}
    facts |= {"pid": 219, "process": "knp"} if by == PROCESS else {}
    return DetailHop(0, HOST, detail=DecisionDetail(QUEUE_ANSWER, facts))


def test_an_answer_that_was_seen_is_certain() -> None:
    (finding,) = found(WEB, CLIENT, DENY, since=(answered("DROP", PROCESS),))
    assert finding.certain and finding.cause.startswith(
        "The process behind queue 100 (NFQUEUE), pid 219 knp, does not let tcp 8080 from pod shop/client to pod shop/web pass:"
        " a rule of kube-network-policies in kube-network-policies/postrouting hands the packets to the queue, and the process"
        " answers DROP. What kube-network-policies decides by is not seen, so the policy, if one decides, is unknown: "
    )
    assert f.proofs(finding, "process") == ["queue 100: pid 219 knp answered DROP after 1.20 ms (observed)"]
    assert len(f.proofs(finding, "object")) == 1


def test_a_drop_without_an_answer() -> None:
    (finding,) = found(WEB, CLIENT, DENY, since=(answered("DROP"),))
    assert not finding.certain and "The same is seen when that process ends" in finding.cause


@pytest.mark.parametrize(
    ("by", "why"),
    [(ENDED, "the process behind it ended or let go of it"), (INTERFACE_DOWN, "an interface went down"),
     (RULES_REMOVED, "rules of their hook were removed")],
)  # fmt: skip
def test_a_queue_that_was_emptied(by: str, why: str) -> None:
    """No policy decided, so none is a candidate."""
    (finding,) = found(WEB, CLIENT, DENY, since=(answered("DROP", by),))
    assert finding.certain and finding.cause == (
        f"Packets waited in queue 100 (NFQUEUE) when {why}, and the kernel dropped them, such as tcp 8080 from pod shop/client"
        " to pod shop/web: a rule of kube-network-policies in kube-network-policies/postrouting hands the packets to the queue."
    )
    assert not f.proofs(finding, "object") and "the log of the process" in finding.cure


@pytest.mark.parametrize("verdict", ["ACCEPT", "REPEAT", "STOP"])
def test_a_packet_that_the_process_let_pass(verdict: str) -> None:
    assert found(WEB, CLIENT, DENY, since=(answered(verdict, PROCESS),)) == []


def test_an_answer_of_an_earlier_queue() -> None:
    """A rule has handed the packet to a queue again since: what that queue did was not seen."""
    again = decided(QUEUE, TABLE)
    (finding,) = found(WEB, CLIENT, DENY, since=(answered("ACCEPT", PROCESS), again))
    assert not finding.certain
