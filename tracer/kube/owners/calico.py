"""Calico: chains cali-*, comments "cali:" and a hash, tables calico and calico-*. Source: felix/rules, felix/iptables."""

from __future__ import annotations

from tracer.kube.known import Known
from tracer.kube.model import Owner
from tracer.kube.owners.rule_text import from_base
from tracer.rules.model import Rule, Ruleset

PROGRAM = "Calico"
CHAINS = ("cali-",)
COMMENTS = ("cali:",)
TABLES = ("calico",)


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
