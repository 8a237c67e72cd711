# SPDX-License-Identifier: Apache-2.0
"""Builds a table in the kernel's layout from the output of iptables-save, so that one engine also serves rules read as text.

tracer/rules/iptables/rule_parser.py parses its rules, tracer/rules/iptables/encode.py lays them out as in the kernel. Offsets
are not those of a real blob; they only distinguish rules.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from tracer.model.netfilter import IP_HOOKS
from tracer.model.rule import Rule, Ruleset
from tracer.rules.iptables import encode
from tracer.rules.iptables.encode import MATCH_ALL
from tracer.rules.iptables.entry import Entry, Extension
from tracer.rules.iptables.rule_parser import parse, split
from tracer.rules.iptables.table import VERDICTS, Table

STEP = 8
"""Bytes from one offset to the next."""
_VERDICTS = {name: number for number, name in VERDICTS.items()}


class UnknownOption(Exception):
    """A rule has an option that this program does not know."""


class AssembledTable(Table):
    """A table with all rules decoded.

    Attributes:
        entries: Rules by offset.
        lists: Offsets of each chain's rules.
    """

    def __init__(self, family: str, name: str, lists: dict[str, list[int]], starts: dict[int, str]) -> None:
        self.family, self.name, self.starts = family, name, starts
        self.entries: dict[int, Entry] = {}
        self.lists = lists
        self.hooks: dict[int, int] = {}
        self.underflows: dict[int, int] = {}

    @property
    def chains(self) -> Iterable[str]:
        return self.lists.keys()

    def offsets(self, chain: str) -> list[int]:
        return self.lists[chain]

    def entry(self, at: int) -> Entry:
        return self.entries[at]

    def target_name(self, at: int) -> str:
        e = self.entries[at]
        return e.target.name if e.verdict is None else self.verdict_name(e.verdict, e.next)


def assemble(ruleset: Ruleset, family: str, name: str) -> tuple[Table, dict[int, Rule]]:
    """Builds one table of a ruleset.

    Args:
        ruleset: Rules with the text that iptables-save printed.
        family: "ip" or "ip6".
        name: The table.

    Returns:
        The table, and its rules by offset.

    Raises:
        UnknownOption: A rule could not be parsed; the message names it.
    """
    chains = {c: rules for (f, t, c), rules in ruleset.chains.items() if (f, t) == (family, name)}
    order = [c.value for c in IP_HOOKS if c in chains] + [c for c in chains if c not in IP_HOOKS]
    starts, at = {}, 0
    for chain in order:
        starts[chain] = at
        at += STEP * (len(chains[chain]) + 1)
    table = AssembledTable(family, name, {c: [] for c in order}, {starts[c]: c for c in order})
    rules: dict[int, Rule] = {}
    for chain in order:
        at = starts[chain]
        for rule in chains[chain]:
            entry = _entry(rule, at, starts)
            table.entries[at], rules[at] = entry, rule
            table.lists[chain].append(at)
            at += STEP
        policy = ruleset.policies.get((family, name, chain), "ACCEPT") if chain in IP_HOOKS else "RETURN"
        table.entries[at] = Entry(at, at + STEP, MATCH_ALL, (), _standard(at, _VERDICTS[policy]), False, chain, 0)
        if chain in IP_HOOKS:
            table.hooks[IP_HOOKS.index(chain)], table.underflows[IP_HOOKS.index(chain)] = starts[chain], at
    return table, rules


def _standard(at: int, verdict: int) -> Extension:
    return Extension("", 0, at, struct.pack("<i", verdict))


def _entry(rule: Rule, at: int, starts: dict[str, int]) -> Entry:
    try:
        parsed = parse(split(rule.text))
        header = encode.header(parsed.head, rule.family)
        matches = tuple(encode.match(name, options, at) for name, options in parsed.matches)
        target, options = parsed.target
        if not target:
            ext = _standard(at, at + STEP)
        elif target in starts or target in _VERDICTS:
            ext = _standard(at, starts.get(target, _VERDICTS.get(target, 0)))
        else:
            ext = encode.target(target, options, at)
    except (ValueError, IndexError, KeyError) as e:
        raise UnknownOption(f"{rule.chain} {rule.number}: {rule.text} ({e})") from e
    return Entry(at, at + STEP, header, matches, ext, parsed.goto, rule.chain, rule.number)


def tables(ruleset: Ruleset) -> Iterator[tuple[str, str]]:
    """(family, table) of each table in a ruleset."""
    yield from dict.fromkeys((family, table) for family, table, _ in ruleset.chains)
