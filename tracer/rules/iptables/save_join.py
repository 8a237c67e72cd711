# SPDX-License-Identifier: Apache-2.0
"""Joins a legacy table with the output of `iptables-save`: the nth line of a chain is its rule number n.

A rule that was not printed has the text that tracer/rules/iptables/entry_text.py makes of it, "" if that does not know a part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate

from tracer.model.rule import Rule
from tracer.rules import save_parser
from tracer.rules.iptables.entry_text import rule_text
from tracer.rules.iptables.table import Table


class SaveMismatch(Exception):
    """The text is not that of this table."""


class SavedRules(Mapping[int, Rule]):
    """The rules of a table by their offset, made on demand: of 80,000 rules a packet meets a few dozen.

    A line that does not fit the rule (another chain, another target) is not used as its text: the tool did not know the rule.
    """

    def __init__(self, table: Table, text: str | None) -> None:
        """Joins both.

        Args:
            table: The table.
            text: Output of iptables-save; None = not available.

        Raises:
            SaveMismatch: The text has other chains, or another number of rules.
        """
        self._table, self._made = table, dict[int, Rule]()
        self._lines, self._first_lines = _lines(table, text) if text is not None else ([], {})

    def __getitem__(self, at: int) -> Rule:
        found = self._made.get(at)
        if found is None:
            found = self._made[at] = self._make(at)
        return found

    def _make(self, at: int) -> Rule:
        table = self._table
        e, target = table.entry(at), table.target_name(at)
        text = ""
        if self._lines:
            _, chain, *rest = self._lines[self._first_lines[e.chain] + e.number - 1].split(" ", 2)
            if chain == e.chain and rest and target in ("", save_parser.target(rest[0])):
                text = rest[0]
        text = text or rule_text(table.family, e, target)
        return Rule(table.family, table.name, e.chain, e.number, text, e.comment, target)

    def __iter__(self) -> Iterator[int]:
        for chain in self._table.chains:
            yield from self._table.offsets(chain)

    def __len__(self) -> int:
        return sum(map(self._table.size, self._table.chains))


def _lines(table: Table, text: str) -> tuple[list[str], dict[str, int]]:
    """(rule lines, index of the first line of each chain). Rules are printed chain by chain, in the order of declaration."""
    head, _, body = text.partition("\n-A ")
    chains = [line.split(" ", 1)[0] for line in ("\n" + head).split("\n:")[1:]]
    if body.count("\nCOMMIT") > 1:
        # A name or a comment has a newline in it, so its writer could forge the next lines.
        raise SaveMismatch(f"what iptables-save printed of {table.name} has more than one end")
    rules = ("-A " + body).partition("\nCOMMIT")[0].removesuffix("\n").split("\n") if body else []
    if set(chains) != table.chains or len(chains) != len(set(chains)):
        raise SaveMismatch(f"iptables-save printed other chains of {table.name} than were read")
    *first_lines, total = accumulate(map(table.size, chains), initial=0)
    if len(rules) != total:
        raise SaveMismatch(f"iptables-save printed {len(rules)} rules of {table.name}, and {total} were read")
    return rules, dict(zip(chains, first_lines, strict=True))
