# SPDX-License-Identifier: Apache-2.0
"""Parses the output of `iptables-save`, `ip6tables-save` and `iptables-nft-save`, with or without -c, into a Ruleset."""

from __future__ import annotations

import re
from functools import lru_cache

from tracer.model.rule import ChainKey, Rule, Ruleset

_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')
_COMMENT = re.compile(r'--comment ("(?:\\.|[^"\\])*"|\S+)')
_TARGET = re.compile(r"(?:^| )(?:-j|-g|--jump|--goto) (\S+)")
_ESCAPE = re.compile(r"\\(.)")


def parse(text: str, family: str = "ip", backend: str = "legacy", netns: int = 0, generation: str = "") -> Ruleset:
    """Parses the tables of one output; lines that are no rules are ignored.

    Args:
        text: The output.
        family: "ip" or "ip6", which the text does not contain.
        backend: Ruleset.backend.
        netns: Ruleset.netns, inode.
        generation: Ruleset.generation.

    Returns:
        The rules. Rule.text is the line without counters and "-A CHAIN"; Rule.comment has no quotes and backslashes left.
    """
    chains: dict[ChainKey, list[Rule]] = {}
    policies: dict[ChainKey, str] = {}
    table = ""
    for line in text.split("\n"):
        first = line[:1]
        if first == "[":
            line = line.partition("] ")[2]
            first = line[:1]
        if first == "-" and line.startswith("-A "):
            chain, _, rest = line[3:].partition(" ")
            rules = chains.setdefault((family, table, chain), [])
            rules.append(rule(family, table, chain, len(rules) + 1, rest))
        elif first == ":":
            chain, _, policy = line[1:].partition(" ")
            policy = policy.split(" ", 1)[0]
            chains.setdefault((family, table, chain), [])
            if policy != "-":
                policies[family, table, chain] = policy
        elif first == "*":
            table = line[1:].strip()
    return Ruleset(backend, netns, generation, {key: tuple(rules) for key, rules in chains.items()}, policies)


def rule(family: str, table: str, chain: str, number: int, text: str, handle: int = 0) -> Rule:
    """A rule from its line. The target is searched outside of quotes, for a comment may contain " -j "."""
    return Rule(family, table, chain, number, text, comment(text), target(text), handle)


def comment(text: str) -> str:
    """The text after --comment, unquoted; "" if there is none."""
    if "--comment " not in text:
        return ""
    found = _COMMENT.search(text)
    if not found:
        return ""
    quoted = found[1]
    return _ESCAPE.sub(r"\1", quoted[1:-1]) if quoted[0] == '"' else quoted


@lru_cache(4096)
def _last_target(text: str) -> str:
    found = _TARGET.findall(text)
    return found[-1] if found else ""


def target(text: str) -> str:
    """The chain or target after -j or -g; "" if the rule only counts."""
    tail = text.rsplit(" -j ", 1)
    if len(tail) == 2 and '"' not in tail[1]:
        return tail[1].split(" ", 1)[0]
    return _last_target(_QUOTED.sub('""', text))
