# SPDX-License-Identifier: Apache-2.0
"""A rule with NFQUEUE and a queue to which no process is bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import findings as f
from tracer.findings.nfqueue_unattended import range_of
from tracer.kube.catalog import ClusterView
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.finding import Finding
from tracer.model.hop import QUEUE_REFUSED, DecisionDetail, DetailHop, Drop, DropHop, TableHop
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Outcome, Packet
from tracer.model.rule import Rule, RuleHit, RuleLocation, RuleTrace
from tracer.packets.queue_details import BUFFER_FULL, NO_PROCESS, QUEUE_FULL
from tracer.rules import save_parser

LINE = "-A FORWARD -p tcp -m tcp --dport 8080 -j NFQUEUE --queue-num 7"


def packet(line: str = LINE, function: str = "nf_queue", netns: Netns = HOST, seen: str | None = None) -> Packet:
    """seen: why the queue was seen not to take it; None = nothing was seen of the queue."""
    rules = save_parser.parse(f"*filter\n{line}\n")
    (rule,) = rules.chain("ip", "filter", "FORWARD")
    hit = RuleHit((RuleLocation("FORWARD", 1),), rule, rule.target, Evidence.OBSERVED)
    hop = TableHop(0, netns, Hook.FORWARD, table="filter", verdict=Verdict.QUEUE, rule_trace=RuleTrace((hit,), ruleset=rules))
    drop = DropHop(1, netns, drop=Drop("NOT_SPECIFIED", function), verdict=Verdict.DROP)
    facts: dict[str, int | str] = {"queue": 7, "errno": 3} | ({"by": seen} if seen else {})
    detail = DetailHop(1, netns, detail=DecisionDetail(QUEUE_REFUSED, facts))
    return f.packet([hop, *([] if seen is None else [detail]), drop], Endpoints(f.CLIENT, 40000, "10.244.0.11", 8080))


def found(made: Packet, queues: tuple[int, ...] | None = ()) -> list[Finding]:
    return f.findings_of([made], ClusterView(), f.FakeNode(queues=queues))[1]


def test_no_process_is_bound() -> None:
    (finding,) = found(packet())
    assert finding.name == "nfqueue_unattended" and finding.certain
    assert finding.cause == (
        "A rule of the administrator in filter/FORWARD hands packets to queue 7 (NFQUEUE, without bypass), and no process is"
        " bound to it: the kernel drops packets that match it."
    )
    assert f.proofs(finding, "process") == ["no process is bound to a queue (/proc/net/netfilter/nfnetlink_queue)"]
    assert f"`iptables-legacy -t filter -D {LINE[3:]}`" in finding.cure


def test_another_queue_has_a_process() -> None:
    (finding,) = found(packet(), (0, 6))
    assert f.proofs(finding, "process")[0].startswith("processes are bound to the queues 0, 6 ")


def test_queues_of_a_balance_of_which_some_have_a_process() -> None:
    (finding,) = found(packet("-A FORWARD -j NFQUEUE --queue-balance 4:7"), (4, 5))
    assert "hands packets to queues 6 to 7 (NFQUEUE, without bypass), and no process is bound to them" in finding.cause
    assert "the kernel drops those of the packets that match it that come to them" in finding.cause


def test_queues_that_cannot_be_read_are_no_certainty() -> None:
    (finding,) = found(packet(), None)
    assert not finding.certain and "perhaps no process is bound to it" in finding.cause and not f.proofs(finding, "process")


@pytest.mark.parametrize(
    ("made", "queues"),
    [
        (packet(), (7,)),
        (packet(LINE + " --queue-bypass"), ()),
        (packet("-A FORWARD -j DROP"), ()),
        (packet(function="nf_hook_slow"), ()),
        (packet(netns=Netns("pod-a")), ()),
        (replace(packet(), outcome=Outcome.FORWARDED), ()),
    ],
    ids=["bound: its queue is full, perhaps", "bypass", "another rule", "another function", "a pod's rules", "not dropped"],
)
def test_no_finding(made: Packet, queues: tuple[int, ...]) -> None:
    assert found(made, queues) == []


@pytest.mark.parametrize(
    ("text", "queues"),
    [
        ("-j NFQUEUE --queue-num 5", range(5, 6)),
        ("-j NFQUEUE", range(1)),
        ("-j NFQUEUE --queue-balance 0:3", range(4)),
        ("-j NFQUEUE --queue-balance 0:3 --queue-bypass", None),
        ("-j NFQUEUE --queue-balance 3:0", None),
        ('-m comment --comment "-j NFQUEUE --queue-num 5" -j ACCEPT', None),
        ('-m comment --comment "--queue-bypass" -j NFQUEUE --queue-num 5', range(5, 6)),
        ("tcp dport 80 queue to 4", range(4, 5)),
        ("tcp dport 80 queue num 4", range(4, 5)),
        ("queue flags fanout to 0-3", range(4)),
        ("queue flags bypass to 0-3", None),
        ("queue flags bypass,fanout to 0-3", None),
        ("queue num 1 bypass", None),
        ("queue num 1-2 fanout", range(1, 3)),
        ("ip daddr 10.0.0.1 queue", range(1)),
        ("queue flags bypass", None),
        ('tcp dport 80 queue to 4 comment "shop"', range(4, 5)),
        ("tcp dport 80 jump queue", None),
        ("queue to symhash mod 2", None),
        ('tcp dport 80 accept comment "queue to 4"', None),
        ('xt target "NFQUEUE"', None),
        ("-j DROP", None),
    ],
)
def test_the_queues_of_a_rule(text: str, queues: range | None) -> None:
    assert range_of(Rule("ip", "filter", "FORWARD", 1, text)) == queues


@pytest.mark.parametrize("queues", [(), None, (6,)])
def test_a_queue_that_was_seen_without_a_process_is_certain(queues: tuple[int, ...] | None) -> None:
    (finding,) = found(packet(seen=NO_PROCESS), queues)
    assert finding.certain and "and no process is bound to it: the kernel drops packets that match it." in finding.cause


def test_a_process_that_was_bound_since() -> None:
    (finding,) = found(packet("-A FORWARD -j NFQUEUE --queue-balance 4:7", seen=NO_PROCESS), (4, 5, 6, 7))
    assert (
        finding.certain
        and "hands packets to queue 7 (NFQUEUE, without bypass), and no process was bound to it: " in finding.cause
    )
    assert "the kernel drops those of the packets that match it that come to them" in finding.cause


@pytest.mark.parametrize("seen", [QUEUE_FULL, BUFFER_FULL, ""])
def test_a_queue_that_was_seen_to_refuse_for_another_reason(seen: str) -> None:
    assert "nfqueue_unattended" not in {finding.name for finding in found(packet(seen=seen), ())}
