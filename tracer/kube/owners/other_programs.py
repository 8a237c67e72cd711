# SPDX-License-Identifier: Apache-2.0
"""Further programs, known only by the names of their chains, tables or comments. Their rules are not the administrator's.

Sources: ovn-kubernetes go-controller/pkg/node/gateway_iptables.go, kube-ovn pkg/daemon/gateway_linux.go; the others by the
names that they are documented with.
"""

from __future__ import annotations

from tracer.kube.catalog import ClusterView
from tracer.kube.rule_text import BASE
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

CHAINS = {
    "f2b-": "fail2ban",
    "OVN-KUBE-": "OVN-Kubernetes",
    "OVN-PREROUTING": "Kube-OVN",
    "OVN-POSTROUTING": "Kube-OVN",
    "OVN-OUTPUT": "Kube-OVN",
    "OVN-MASQUERADE": "Kube-OVN",
    "OVN-NAT-POLICY": "Kube-OVN",
    "OVN-NAT-PSUBNET-": "Kube-OVN",
    "ts-forward": "Tailscale",
    "ts-input": "Tailscale",
    "ts-postrouting": "Tailscale",
    "WEAVE": "Weave Net",
    "WEAVE-": "Weave Net",
}
"""Name of a chain, or, if it ends with "-" or "_", the beginning of the names -> program."""

TABLES = {"ovn-kubernetes": "OVN-Kubernetes"}
COMMENTS = {"NodeLocal DNS Cache:": "NodeLocal DNSCache"}


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    if rule.table in TABLES:
        return Owner("program", program=TABLES[rule.table], detail=f"table {rule.table}", evidence="table name")
    for chain in (rule.chain, rule.target if rule.chain in BASE else ""):
        for name, program in CHAINS.items():
            if chain == name or (name[-1] in "-_" and chain.startswith(name)):
                return Owner("program", program=program, detail=f"chain {chain}", evidence="chain name")
    for prefix, program in COMMENTS.items():
        if rule.comment.startswith(prefix):
            return Owner("program", program=program, evidence="comment")
    return None
