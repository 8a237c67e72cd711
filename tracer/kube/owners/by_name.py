# SPDX-License-Identifier: Apache-2.0
"""Finds programs by the names of their chains, tables or comments, without an object for which the rule was written."""

from __future__ import annotations

from tracer.kube.rule_text import from_base
from tracer.model.kube import Owner
from tracer.model.rule import Rule

Prefixes = tuple[str, ...]


def by_name(rule: Rule, program: str, chains: Prefixes, tables: Prefixes, comments: Prefixes) -> Owner | None:
    """Returns the program if its chain, table or comment prefixes match the rule; else None."""
    if rule.chain.startswith(chains):
        return Owner("program", program=program, detail=f"chain {rule.chain}", evidence="chain name")
    if rule.table.startswith(tables):
        return Owner("program", program=program, detail=f"table {rule.table}", evidence="table name")
    if from_base(rule, chains):
        return Owner("program", program=program, detail=f"chain {rule.target}", evidence="chain it jumps to")
    if rule.comment.startswith(comments):
        return Owner("program", program=program, evidence="comment")
    return None
