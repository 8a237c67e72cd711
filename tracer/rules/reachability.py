# SPDX-License-Identifier: Apache-2.0
"""Which rules a packet can get to: from the base chains by jumps, gotos and the elements of verdict maps.

A program that goes, or changes its mode, leaves chains that nothing leads to any more. Their rules are there and never act.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.model.rule import ChainKey, Rule, Ruleset
from tracer.rules.nftables.json_parser import Expression, NftListing

_ENDS = frozenset({"ACCEPT", "DROP", "RETURN", "REJECT", "QUEUE"})


class Reachability:
    """The chains of one ruleset that a packet can get to. listed: what nft lists, for its native tables and verdict maps."""

    def __init__(self, ruleset: Ruleset, listed: NftListing | None = None) -> None:
        self._ruleset, self._listed = ruleset, listed
        self.maps: set[ChainKey] = set()
        """Verdict maps (family, table, name) that a rule within reach looks a packet up in."""
        # Every base chain has a policy, and no other chain has one.
        self.chains: set[ChainKey] = set()
        self._follow([key for key in ruleset.chains if key in ruleset.policies])

    def acting(self, chain: ChainKey) -> tuple[Rule, ...]:
        """The rules of a chain that a packet can get to: none of an unreached chain, none behind one that ends it for all."""
        return tuple(self._until_the_end(self._ruleset.chains[chain])) if chain in self.chains else ()

    def acts(self, rule: Rule) -> bool:
        """Whether a packet can get to this rule."""
        return rule in self.acting((rule.family, rule.table, rule.chain))

    def _follow(self, waiting: list[ChainKey]) -> None:
        while waiting:
            key = waiting.pop()
            if key in self.chains or key not in self._ruleset.chains:
                continue
            self.chains.add(key)
            for rule in self.acting(key):
                waiting += [(rule.family, rule.table, target) for target in self._targets(rule)]

    def _targets(self, rule: Rule) -> Iterator[str]:
        if rule.target:
            yield rule.target
        for expression in self._body(rule):
            ((kind, body),) = expression.items()
            if kind in ("jump", "goto"):
                yield body["target"]
            elif kind == "vmap":
                yield from self._of_map(rule, body["data"])

    def _of_map(self, rule: Rule, data: object) -> Iterator[str]:
        if isinstance(data, str):
            key = rule.family, rule.table, data.removeprefix("@")
            self.maps.add(key)
            found = self._listed.maps.get(key) if self._listed else None
            for element in found.elements.values() if found else ():
                word, _, target = element.verdict.partition(" ")
                if word in ("jump", "goto"):
                    yield target
        elif isinstance(data, dict):
            for pair in data.get("set", ()):
                verdict = pair[1] if isinstance(pair, list) and len(pair) == 2 else {}
                for word in ("jump", "goto") if isinstance(verdict, dict) else ():
                    if word in verdict:
                        yield verdict[word]["target"]

    def _body(self, rule: Rule) -> tuple[Expression, ...]:
        return self._listed.expressions.get((rule.family, rule.table, rule.chain, rule.handle), ()) if self._listed else ()

    def _until_the_end(self, rules: tuple[Rule, ...]) -> Iterator[Rule]:
        for rule in rules:
            yield rule
            if self._for_all(rule):
                return

    def _for_all(self, rule: Rule) -> bool:
        """Whether the chain ends here for every packet: the rule asks nothing, and does not come back."""
        if rule.text.startswith(("-j ", "-g ")):
            return rule.text.startswith("-g ") or rule.target in _ENDS
        body = [e for e in self._body(rule) if "counter" not in e]
        return len(body) == 1 and bool({"accept", "drop", "return", "reject", "goto", "queue"}.intersection(body[0]))
