"""Joins a legacy table with what `iptables-save` printed of it: the nth line of a chain is its rule number n."""

from __future__ import annotations

from collections.abc import Mapping

from tracer.lazy import Lazy
from tracer.rules import save
from tracer.rules.blob import Table
from tracer.rules.model import Rule


class NotTheSame(Exception):
    """The text is not that of this table."""


def join(table: Table, text: str | None) -> Mapping[int, Rule]:
    """The rules of a table by their offset, with the text that iptables-save printed; None: none could be had, texts are "".

    Raises NotTheSame when text and table differ in their chains, or in what a rule's target is.
    """
    texts: dict[int, str] = {}
    if text is None:
        texts = {at: "" for chain in table.chains for at, _ in table.targets(chain)}
    else:
        printed = save.lines(text)
        if printed.keys() != table.chains.keys():
            raise NotTheSame(f"iptables-save printed other chains of {table.name} than were read")
        for chain, lines in printed.items():
            targets = table.targets(chain)
            if len(lines) != len(targets):
                raise NotTheSame(f"iptables-save printed {len(lines)} rules of {chain}, and {len(targets)} were read")
            for (at, target), line in zip(targets, lines, strict=True):
                if target and save.target(line) != target:
                    raise NotTheSame(f"iptables-save printed another rule of {chain} than was read: {line}")
                texts[at] = line

    def rule(at: int) -> Rule:
        e = table.entries[at]
        return Rule(table.family, table.name, e.chain, e.number, texts[at], e.comment, table.target_name(e))

    return Lazy(texts, rule)
