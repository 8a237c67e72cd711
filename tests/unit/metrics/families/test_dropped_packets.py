# SPDX-License-Identifier: Apache-2.0
"""The labels of a packet that failed: the rule, its owner, the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import sample_packets as samples
from tests.support.metric_books import book, values
from tracer.model.bpf_program import AttachedProgram
from tracer.model.evidence import Evidence
from tracer.model.kube import Owner
from tracer.model.packet import Packet
from tracer.model.rule import Rule, RuleHit, RuleLocation, RuleTrace

CILIUM = AttachedProgram("tc", 42, "cil_from_netdev", "", "Cilium", "pin", "/sys/fs/bpf/cilium/x")
SERVICE = Owner("Service", "default", "lonely-web", "http", "kube-proxy")
RULE = Rule("ip6", "ip6 kube-proxy", "external", 4, "reject")
DROPPED = samples.rejected()
TC_REASON = "TC_INGRESS in __netif_receive_skb_core"
REASON = "REJECT in ip6 kube-proxy/filter-output"


def decided(rule: Rule | None, owner: Owner | None, undecided: str = "", evidence: Evidence = Evidence.OBSERVED) -> Packet:
    hit = RuleHit((RuleLocation("external", rule.number if rule else 0),), rule, "REJECT", evidence)
    return samples.with_hop(DROPPED, 0, owner=owner, rule_trace=RuleTrace((hit,), undecided=undecided))


@pytest.mark.parametrize(
    ("packet", "labels"),
    [
        (decided(RULE, SERVICE), ("ip6 kube-proxy/external 4", "Service", "default", "lonely-web", REASON)),
        (
            decided(RULE, SERVICE, evidence=Evidence.DERIVED),
            ("ip6 kube-proxy/external 4 (derived)", "Service", "default", "lonely-web", REASON),
        ),
        (decided(None, None), ("ip6 kube-proxy/external policy", "none", "none", "none", REASON)),
        (
            decided(RULE, Owner("program", program="kubelet")),
            ("ip6 kube-proxy/external 4", "program", "none", "kubelet", REASON),
        ),
        (decided(RULE, Owner("unknown")), ("ip6 kube-proxy/external 4", "unknown", "none", "none", REASON)),
        (decided(RULE, SERVICE, "the rules were replaced"), ("unknown", "Service", "default", "lonely-web", REASON)),
        (replace(samples.full_queue(), complete=True), ("none", "none", "none", "none", "accept queue full")),
        (samples.full_queue(), ("unknown", "none", "none", "none", "accept queue full")),
        (
            samples.dropped_by_program(CILIUM),
            ("tc ingress cil_from_netdev", "program", "none", "Cilium", TC_REASON),
        ),
        (
            samples.dropped_by_program(replace(CILIUM, loader_evidence="name")),
            ("tc ingress cil_from_netdev", "unknown", "none", "none", TC_REASON),
        ),
        (
            samples.dropped_by_program(CILIUM, replace(CILIUM, number=43)),
            ("unknown", "unknown", "none", "none", TC_REASON),
        ),
        (samples.no_socket(), ("none", "none", "none", "none", "unknown")),
    ],
)
def test_labels(packet: Packet, labels: tuple[str, ...]) -> None:
    metrics = book()
    metrics.packet(packet)
    metrics.packet(packet)
    assert values(metrics, "dropped_packets") == {labels: 2}
    assert values(metrics, "incomplete_packets") == {(): 2 * (not packet.complete)}
