"""Cilium: chains CILIUM_*, comments "cilium-feeder:" and "cilium:". Source: pkg/datapath/iptables/iptables.go."""

from __future__ import annotations

from tracer.kube.known import Known
from tracer.kube.model import Owner
from tracer.kube.owners.rule_text import from_base
from tracer.rules.model import Rule, Ruleset

PROGRAM = "Cilium"
CHAINS = ("CILIUM_", "OLD_CILIUM_")
COMMENTS = ("cilium-feeder: ", "cilium: ", "cilium ")
TABLES = ("cilium",)


def owner(rule: Rule, ruleset: Ruleset, known: Known) -> Owner | None:
    if rule.chain.startswith(CHAINS):
        return Owner("program", program=PROGRAM, detail=f"chain {rule.chain}", evidence="chain name")
    if rule.table.startswith(TABLES):
        return Owner("program", program=PROGRAM, detail=f"table {rule.table}", evidence="table name")
    if from_base(rule, CHAINS):
        return Owner("program", program=PROGRAM, detail=f"chain {rule.target}", evidence="chain it jumps to")
    if rule.comment.startswith(COMMENTS):
        return Owner("program", program=PROGRAM, evidence="comment")
    return None
