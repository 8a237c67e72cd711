"""Joins a legacy table with what `iptables-save` printed of it: the nth line of a chain is its rule number n."""

from __future__ import annotations

from tracer.rules import save
from tracer.rules.blob import Entry, Table
from tracer.rules.model import Rule


class NotTheSame(Exception):
    """The text is not that of this table."""


def join(table: Table, text: str | None) -> dict[int, Rule]:
    """The rules of a table by their offset, with the text that iptables-save printed; None: none could be had, texts are "".

    Raises NotTheSame when text and table differ in their chains, or in what a rule's target is.
    """
    if text is None:
        return {e.at: _rule(table, e, "", table.target_name(e)) for entries in table.chains.values() for e in entries}
    chains = {chain: rules for (_, _, chain), rules in save.parse(text, table.family).chains.items()}
    if {c: len(r) for c, r in chains.items()} != {c: len(r) for c, r in table.chains.items()}:
        raise NotTheSame(f"iptables-save printed other chains of {table.name} than were read")
    rules = {}
    for name, entries in table.chains.items():
        for e, printed in zip(entries, chains[name], strict=True):
            target = table.target_name(e)
            if target and printed.target != target:
                raise NotTheSame(f"iptables-save printed another rule {e.number} of {name} than was read: {printed.text}")
            rules[e.at] = _rule(table, e, printed.text, target)
    return rules


def _rule(table: Table, e: Entry, text: str, target: str) -> Rule:
    return Rule(table.family, table.name, e.chain, e.number, text, e.comment, target)
