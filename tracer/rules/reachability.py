# SPDX-License-Identifier: Apache-2.0
"""Finds the rules that a packet can reach: from the base chains by jumps, gotos and the elements of verdict maps.

A program that is removed, or changes its mode, leaves chains behind that no rule leads to any more. Their rules never act.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.model.rule import ChainKey, Rule, Ruleset
from tracer.rules.nftables.json_parser import Expression, NftListing
from tracer.util.json_value import Json, as_text, member, only_member

_ENDS = frozenset({"ACCEPT", "DROP", "RETURN", "REJECT", "QUEUE"})


class Reachability:
    """The chains of one ruleset that a packet can reach.

    Args:
        ruleset: The rules.
        listed: The listing of nft, for native tables and verdict maps; None = no nftables.

    Attributes:
        chains: The reachable chains.
        maps: Verdict maps (family, table, name) in which a reachable rule looks a packet up.
    """

    def __init__(self, ruleset: Ruleset, listed: NftListing | None = None) -> None:
        self._ruleset, self._listed = ruleset, listed
        self.maps: set[ChainKey] = set()
        # Every base chain has a policy, and no other chain has one.
        self.chains: set[ChainKey] = set()
        self._follow([key for key in ruleset.chains if key in ruleset.policies])

    def acting(self, chain: ChainKey) -> tuple[Rule, ...]:
        """The reachable rules of a chain: none of an unreachable chain, none after a rule that ends it for all."""
        return tuple(self._reachable_rules(self._ruleset.chains[chain])) if chain in self.chains else ()

    def acts(self, rule: Rule) -> bool:
        """Whether a packet can reach this rule."""
        return rule in self.acting((rule.family, rule.table, rule.chain))

    def _follow(self, pending: list[ChainKey]) -> None:
        while pending:
            key = pending.pop()
            if key in self.chains or key not in self._ruleset.chains:
                continue
            self.chains.add(key)
            for rule in self.acting(key):
                pending += [(rule.family, rule.table, target) for target in self._targets(rule)]

    def _targets(self, rule: Rule) -> Iterator[str]:
        if rule.target:
            yield rule.target
        for expression in self._body(rule):
            kind, body = only_member(expression)
            if kind in ("jump", "goto"):
                yield as_text(member(body, "target"))
            elif kind == "unknown":
                yield from self._all_of(rule)
            elif kind == "vmap":
                yield from self._of_map(rule, member(body, "data"))

    def _of_map(self, rule: Rule, data: Json) -> Iterator[str]:
        if isinstance(data, str):
            key = rule.family, rule.table, data.removeprefix("@")
            self.maps.add(key)
            found = self._listed.maps.get(key) if self._listed else None
            if self._listed and found is None:
                yield from self._all_of(rule)
            for element in found.elements.values() if found else ():
                word, _, target = element.verdict.partition(" ")
                if word in ("jump", "goto"):
                    yield target
        elif isinstance(data, dict) and "unknown" in data:
            yield from self._all_of(rule)
        elif isinstance(data, dict):
            elements = data.get("set")
            for pair in elements if isinstance(elements, list) else ():
                verdict = pair[1] if isinstance(pair, list) and len(pair) == 2 else None
                for word in ("jump", "goto"):
                    if isinstance(verdict, dict) and word in verdict:
                        yield as_text(member(verdict[word], "target"))

    def _all_of(self, rule: Rule) -> Iterator[str]:
        """All chains of a table, for what may lead to any of them."""
        yield from (name for family, table, name in self._ruleset.chains if (family, table) == (rule.family, rule.table))

    def _body(self, rule: Rule) -> tuple[Expression, ...]:
        return self._listed.expressions.get((rule.family, rule.table, rule.chain, rule.handle), ()) if self._listed else ()

    def _reachable_rules(self, rules: tuple[Rule, ...]) -> Iterator[Rule]:
        for rule in rules:
            yield rule
            if self._ends_for_all(rule):
                return

    def _ends_for_all(self, rule: Rule) -> bool:
        """Whether the chain ends here for every packet: the rule has no match, and its target does not return."""
        if rule.text.startswith(("-j ", "-g ")):
            return rule.text.startswith("-g ") or rule.target in _ENDS
        body = [e for e in self._body(rule) if "counter" not in e]
        return len(body) == 1 and bool({"accept", "drop", "return", "reject", "goto", "queue"}.intersection(body[0]))
