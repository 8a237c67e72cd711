# SPDX-License-Identifier: Apache-2.0
"""Further programs, known only by the prefixes of their chains or comments. Their rules are not the administrator's."""

from __future__ import annotations

from tracer.kube.catalog import ClusterView
from tracer.kube.rule_text import BASE
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

CHAINS = {
    "AWS-CONNMARK-CHAIN-": "Amazon VPC CNI",
    "AWS-SNAT-CHAIN-": "Amazon VPC CNI",
    "ANTREA-": "Antrea",
    "f2b-": "fail2ban",
    "IP-MASQ": "ip-masq-agent",
    "ISTIO_": "Istio",
    "LIBVIRT_": "libvirt",
    "OVN-": "Kube-OVN",
    "ts-": "Tailscale",
    "ufw-": "ufw",
    "ufw6-": "ufw",
    "WEAVE": "Weave Net",
}
"""Prefix of the chain names -> program."""

TABLES = {"firewalld": "firewalld"}
COMMENTS = {"NodeLocal DNS Cache:": "NodeLocal DNSCache"}


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    if rule.table in TABLES:
        return Owner("program", program=TABLES[rule.table], detail=f"table {rule.table}", evidence="table name")
    for chain in (rule.chain, rule.target if rule.chain in BASE else ""):
        for prefix, program in CHAINS.items():
            if chain.startswith(prefix):
                return Owner("program", program=program, detail=f"chain {chain}", evidence="chain name")
    for prefix, program in COMMENTS.items():
        if rule.comment.startswith(prefix):
            return Owner("program", program=program, evidence="comment")
    return None
