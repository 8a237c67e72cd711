# SPDX-License-Identifier: Apache-2.0
"""kube-proxy in ipvs mode: a few rules that match ipsets, for all Services, and virtual servers without names.

A virtual server has only an address and a port, so its Service is known only from the API.
Source: kubernetes pkg/proxy/ipvs/proxier.go, ipset.go.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.kube.rule_text import from_base
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

PROGRAM = "kube-proxy"

OWN = frozenset({
    "KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER", "KUBE-SOURCE-RANGES-FIREWALL",
})  # fmt: skip
_FOR_SERVICE = re.compile(r"--match-set KUBE-(CLUSTER-IP|EXTERNAL-IP|LOAD-BALANCER|NODE-PORT)\S* dst")
SHARED = frozenset({"KUBE-SERVICES", "KUBE-POSTROUTING", "KUBE-NODEPORTS"})
"""Chains that the iptables mode also has. In ipvs mode their rules match ipsets."""


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    asks_set = "--match-set KUBE-" in rule.text or 'xt match "set"' in rule.text
    mine = rule.chain in OWN or (rule.chain in SHARED and (asks_set or rule.target in OWN))
    # kubelet's KUBE-FIREWALL is in the filter table.
    mine = mine or (rule.table == "nat" and rule.chain == "KUBE-FIREWALL")
    if mine:
        return Owner("program", program=PROGRAM, detail=rule.chain, evidence="chain name")
    if from_base(rule, OWN) or (rule.table == "nat" and from_base(rule, frozenset({"KUBE-FIREWALL"}))):
        return Owner("program", program=PROGRAM, detail=rule.target, evidence="chain it jumps to")
    return None


def asks_for_the_service(rule: Rule) -> bool:
    """Whether the rule matches packets to a Service by an ipset. Then it acts for the Service at the packet's destination."""
    return bool(_FOR_SERVICE.search(rule.text))


def owner_of_virtual_server(address: str, port: int, protocol: str, cluster: ClusterView) -> Owner:
    """Returns the owner of a virtual server, by its Service IP or, on any local address, by its NodePort."""
    store = cluster.store
    found = store.by_address.one((address, port, protocol))
    if found:
        return found[0].owner(found[1], "API: address and port", PROGRAM)
    by_node = store.by_node_port.one((port, protocol))
    if by_node and not store.by_service_ip.all(address):
        return by_node.owner(f"NodePort {port}", "API: NodePort", PROGRAM)
    return Owner("unknown", program="IPVS", evidence="a virtual server bears no name")
