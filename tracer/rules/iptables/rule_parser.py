# SPDX-License-Identifier: Apache-2.0
"""A rule as iptables-save prints it, taken apart: words, options, matches, target."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from tracer.rules.iptables.entry import Extension
from tracer.util.octets import decoded

_FREE = frozenset({"--comment", "--log-prefix", "--nflog-prefix"})
"""Options whose value may look like anything."""

Option = tuple[str, bool, list[str]]
"""Name, whether negated, values."""


@dataclass
class ParsedRule:
    """A rule taken apart. head: -s, -d and so on. matches, target: a name and its options. goto: by -g."""

    head: list[Option] = field(default_factory=list)
    matches: list[tuple[str, list[Option]]] = field(default_factory=list)
    target: tuple[str, list[Option]] = ("", [])
    goto: bool = False


_WORD = re.compile(r'"((?:\\.|[^"\\])*)"(?!\S)|(\S+)')
_ESCAPE = re.compile(r"\\(.)")


def split(text: str) -> list[str]:
    """The words of a rule as iptables-save quotes them. Raises ValueError for a quote that does not end."""
    found = []
    for quoted, bare in _WORD.findall(text):
        if bare.startswith('"'):
            raise ValueError("a quote that does not end")
        found.append(bare or _ESCAPE.sub(r"\1", quoted))
    return found


def parse(words: Sequence[str]) -> ParsedRule:
    """Raises IndexError for an option that lacks its name or value."""
    out, negated = ParsedRule(), False
    options = out.head
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
                out.matches.append((name, options))
            else:
                out.target, out.goto = (name, options), word == "-g"
        elif word in _FREE:
            options.append((word, negated, [words[at]]))
            at += 1
        elif word.startswith("-"):
            options.append((word, negated, []))
            negated = False
        else:
            options[-1][2].append(word)
    return out


def format_options(options: Sequence[Option]) -> str:
    """Options as iptables-save writes them."""
    return " ".join(" ".join(["!"] * negated + [name, *values]) for name, negated, values in options)


def options_of(ext: Extension) -> list[Option]:
    """The options of a match or target that is kept in words."""
    return parse(split(decoded(ext.data))).head
