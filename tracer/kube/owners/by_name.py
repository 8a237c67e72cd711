# SPDX-License-Identifier: Apache-2.0
"""Finds programs by the names of their chains, tables or comments, without an object for which the rule was written."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tracer.kube.rule_text import BASE, from_base
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


@dataclass(frozen=True)
class ExactNames:
    """The whole names that one program gives. A name that only begins like one of them belongs to the administrator.

    Attributes:
        program: Name of the program.
        chains: Pattern of a whole chain name.
        tables: Names of nftables tables; all their rules are the program's.
        comments: Pattern of a whole comment of rules in built-in chains.
    """

    program: str
    chains: re.Pattern[str]
    tables: frozenset[str] = frozenset()
    comments: re.Pattern[str] | None = None

    def owner(self, rule: Rule) -> Owner | None:
        """Returns the program if table, chain, the chain that a built-in chain jumps to, or the comment fits; else None."""
        if rule.table in self.tables:
            return Owner("program", program=self.program, detail=f"table {rule.table}", evidence="table name")
        if self.chains.fullmatch(rule.chain):
            return Owner("program", program=self.program, detail=f"chain {rule.chain}", evidence="chain name")
        if rule.chain in BASE and self.chains.fullmatch(rule.target):
            return Owner("program", program=self.program, detail=f"chain {rule.target}", evidence="chain it jumps to")
        if rule.chain in BASE and self.comments and self.comments.fullmatch(rule.comment):
            return Owner("program", program=self.program, evidence="comment")
        return None
