"""The text of rules as `iptables-save` prints it, by chain: the nth `-A CHAIN` line is the chain's rule number n."""

from __future__ import annotations

import re

from tracer.rules.blob import Entry, Table
from tracer.rules.model import Rule

_RULE = re.compile(r"-A (\S+) ?(.*)")
_COMMENT = re.compile(r'--comment (?:"((?:[^"\\]|\\.)*)"|(\S+))')


class NotTheSame(Exception):
    """The text is not that of this table."""


def parse(text: str) -> dict[str, list[str]]:
    """The rules' texts, without "-A CHAIN", by chain. Chains without rules are there too."""
    chains: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith(":"):
            chains.setdefault(line[1:].split()[0], [])
        elif found := _RULE.match(line):
            chains.setdefault(found[1], []).append(found[2])
    return chains


def comment(text: str) -> str:
    """The comment in a rule's text, "" if it has none."""
    found = _COMMENT.search(text)
    return "" if not found else found[2] or re.sub(r"\\(.)", r"\1", found[1] or "")


def join(table: Table, text: str | None) -> dict[int, Rule]:
    """The rules of a table by their offset, with the text that iptables-save printed; None: none could be had, texts are "".

    Raises NotTheSame when text and table differ in their chains, or in what a rule's target is.
    """
    chains = parse(text) if text is not None else {c: [""] * len(rules) for c, rules in table.chains.items()}
    if {c: len(r) for c, r in chains.items()} != {c: len(r) for c, r in table.chains.items()}:
        raise NotTheSame(f"iptables-save printed other chains of {table.name} than were read")
    rules = {}
    for name, entries in table.chains.items():
        for e, words in zip(entries, chains[name], strict=True):
            target = table.target_name(e)
            if text is not None and target and not re.search(rf"(?:^| )-[jg] {re.escape(target)}(?: |$)", words):
                raise NotTheSame(f"iptables-save printed another rule {e.number} of {name} than was read: {words}")
            rules[e.at] = _rule(table, e, words, target)
    return rules


def _rule(table: Table, e: Entry, text: str, target: str) -> Rule:
    return Rule(table.family, table.name, e.chain, e.number, text, e.comment, target)
