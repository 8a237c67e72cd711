# SPDX-License-Identifier: Apache-2.0
"""A queue of NFQUEUE rules that takes no more packets."""

from __future__ import annotations

import pytest

from tests.support import findings as f
from tests.unit.findings.test_dropped_by_queue import ENDS, QUEUE, TABLE, decided
from tracer.kube.catalog import ClusterView
from tracer.model.finding import Finding
from tracer.model.hop import QUEUE_REFUSED, DecisionDetail, DetailHop, Drop, DropHop, Hop
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Verdict
from tracer.packets.outcome import classify
from tracer.packets.queue_details import BUFFER_FULL, NO_PROCESS, QUEUE_FULL

FULL: dict[str, int | str] = {"queue": 100, "errno": 105, "by": QUEUE_FULL, "waiting": 1024, "maximum": 1024}


def hops(facts: dict[str, int | str], function: str = "nf_queue", has_rule: bool = True) -> list[Hop]:
    detail = DetailHop(0, HOST, detail=DecisionDetail(QUEUE_REFUSED, facts))
    drop = DropHop(0, HOST, verdict=Verdict.DROP, drop=Drop("NOT_SPECIFIED", function))
    return [*([decided(QUEUE, TABLE)] if has_rule else []), detail, drop]


def found(made: list[Hop]) -> list[Finding]:
    return f.findings_of([f.packet(made, ENDS)], ClusterView(), f.FakeNode())[1]


def test_a_full_queue() -> None:
    (finding,) = found(hops(FULL))
    assert (finding.name, finding.certain) == ("queue_full", True) and finding.cause == (
        "Queue 100 (NFQUEUE) is full (1024 packets wait, maximum 1024), and the kernel drops what a rule of"
        " kube-network-policies in kube-network-policies/postrouting hands to it: the process takes packets more slowly than"
        " they come, or not at all."
    )
    assert f.proofs(finding, "process") == ["queue 100: full: 1024 packets wait, maximum 1024 (observed)"]
    assert "`nft -a list chain inet kube-network-policies postrouting` shows the rule." in finding.check
    assert "NFQA_CFG_QUEUE_MAXLEN" in finding.cure


def test_a_full_receive_buffer() -> None:
    (finding,) = found(hops({**FULL, "by": BUFFER_FULL, "waiting": 9}))
    assert finding.certain and finding.cause.startswith(
        "The receive buffer of the process behind queue 100 (NFQUEUE) is full, and"
    )
    assert "SO_RCVBUFFORCE" in finding.cure and "9 packets" not in finding.cause


def test_the_rule_is_not_known() -> None:
    (finding,) = found(hops(FULL, has_rule=False))
    assert "what a rule of an unknown program hands to it" in finding.cause and not f.proofs(finding, "rule")


@pytest.mark.parametrize(
    "made",
    [hops({**FULL, "by": NO_PROCESS}), hops({"queue": 100, "errno": 12}), hops(FULL, "nf_hook_slow"), [decided(QUEUE, TABLE)]],
    ids=["no process", "no memory", "another function", "not dropped"],
)
def test_no_finding(made: list[Hop]) -> None:
    assert "queue_full" not in {each.name for each in found(made)}


def test_endings() -> None:
    ended = {by: classify(f.packet(hops({**FULL, "by": by}), ENDS))[0] for by in (QUEUE_FULL, BUFFER_FULL, NO_PROCESS)}
    assert ended == {
        QUEUE_FULL: "DROPPED at queue 100 (NFQUEUE), which is full: 1024 packets wait, maximum 1024",
        BUFFER_FULL: "DROPPED at queue 100 (NFQUEUE): the receive buffer of its process is full",
        NO_PROCESS: "DROPPED at queue 100 (NFQUEUE): no process listens",
    }
    assert (
        classify(f.packet(hops({"queue": 100, "errno": 12}), ENDS))[0]
        == "DROPPED at queue 100 (NFQUEUE): does not take it: ENOMEM"
    )
