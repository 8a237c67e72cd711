# SPDX-License-Identifier: Apache-2.0
"""Parses a rule as iptables-save prints it: words, options, matches, target."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tracer.rules.iptables.entry import Extension
from tracer.util.octets import decoded

_FREE_TEXT_OPTIONS = frozenset({"--comment", "--log-prefix", "--nflog-prefix"})
"""Options with a free text as value."""

Option = tuple[str, bool, list[str]]
"""(name, whether it is negated, values) of an option."""


@dataclass
class ParsedRule:
    """A parsed rule.

    Attributes:
        head: Options before the first match: -s, -d and so on.
        matches: Name and options of each -m.
        target: Name and options of the target, "" = none.
        goto: Whether the target is given by -g.
    """

    head: list[Option] = field(default_factory=list)
    matches: list[tuple[str, list[Option]]] = field(default_factory=list)
    target: tuple[str, list[Option]] = ("", [])
    goto: bool = False


_WORD = re.compile(r'"((?:\\.|[^"\\])*)"(?!\S)|(\S+)')
_ESCAPE = re.compile(r"\\(.)")


def split(text: str) -> list[str]:
    """Splits a rule into words, with the quoting of iptables-save. Raises ValueError for an unterminated quote."""
    found = []
    for quoted, bare in _WORD.findall(text):
        if bare.startswith('"'):
            raise ValueError("a quote that does not end")
        found.append(bare or _ESCAPE.sub(r"\1", quoted))
    return found


def parse(words: Sequence[str]) -> ParsedRule:
    """Parses the words of a rule. Raises IndexError for an option without its name or value."""
    rule, negated = ParsedRule(), False
    options = rule.head
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word == "!":
            negated = True
        elif word in ("-m", "-j", "-g"):
            name, options = words[at], []
            at += 1
            if word == "-m":
                rule.matches.append((name, options))
            else:
                rule.target, rule.goto = (name, options), word == "-g"
        elif word in _FREE_TEXT_OPTIONS:
            options.append((word, negated, [words[at]]))
            at += 1
        elif word.startswith("-"):
            options.append((word, negated, []))
            negated = False
        else:
            options[-1][2].append(word)
    return rule


def format_options(options: Sequence[Option]) -> str:
    """Formats options as iptables-save writes them."""
    return " ".join(" ".join(["!"] * negated + [name, *values]) for name, negated, values in options)


def options_of(ext: Extension) -> list[Option]:
    """The options of a match or target that is kept as text."""
    return parse(split(decoded(ext.data))).head
