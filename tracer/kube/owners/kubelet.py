# SPDX-License-Identifier: Apache-2.0
"""kubelet: its own marks, and the firewall that drops marked packets. Source: pkg/kubelet/kubelet_network_linux.go."""

from __future__ import annotations

from tracer.kube.catalog import ClusterView
from tracer.kube.rule_text import from_base
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

PROGRAM = "kubelet"

OWN = frozenset({"KUBE-MARK-DROP", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"})
FIREWALL = frozenset({"KUBE-FIREWALL"})
"""The chain in the filter table. The one in the nat table belongs to kube-proxy in ipvs mode."""

MARKS = {"KUBE-FIREWALL": "KUBE-MARK-DROP"}


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    own = OWN | FIREWALL if rule.table == "filter" else OWN
    if rule.chain in own:
        return Owner("program", program=PROGRAM, detail=rule.chain, evidence="chain name")
    if from_base(rule, own):
        return Owner("program", program=PROGRAM, detail=rule.target, evidence="chain it jumps to")
    return None
