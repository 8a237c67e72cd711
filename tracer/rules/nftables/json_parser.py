# SPDX-License-Identifier: Apache-2.0
"""Parses the output of `nft -j list ruleset`: rules with their expressions, sets, maps, base chains.

nft hides the content of iptables-nft's matches and targets: a comment is only {"xt": {"name": "comment"}}. A caller that has
the comments from another source, such as netlink, passes them by handle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tracer.model.rule import ChainKey, Rule, Ruleset
from tracer.rules.nftables.format import expression, operand
from tracer.util.json_value import Json, JsonObject, as_list, as_number, as_object, as_pair, as_text, member, only_member

Handle = tuple[str, str, str, int]
"""(family, table, chain, handle) of a rule."""


@dataclass(frozen=True)
class ListedElement:
    """One element of a map.

    Attributes:
        key: The parts of its key as nft writes them.
        verdict: Its verdict, such as "goto service-..." or "drop".
        comment: Its comment, "" = none.
    """

    key: tuple[str, ...]
    verdict: str
    comment: str = ""

    @property
    def text(self) -> str:
        """The element as nft writes it: tcp . 30420 comment "2048-game/service-2048" : drop."""
        return " . ".join(self.key) + (f' comment "{self.comment}"' if self.comment else "") + f" : {self.verdict}"


@dataclass(frozen=True)
class NftMap:
    """A map.

    Attributes:
        family: Family of its table.
        table: Its table.
        name: Its name.
        comment: The comment of the map itself, "" = none.
        elements: Its elements, by key.
    """

    family: str
    table: str
    name: str
    comment: str = ""
    elements: Mapping[tuple[str, ...], ListedElement] = field(default_factory=dict)

    @cached_property
    def is_simple(self) -> bool:
        """Whether each key is one value: no range, no prefix, no element for all other keys."""
        return all("/" not in k and "-" not in k and k != "*" for e in self.elements for k in e)


Expression = JsonObject
"""One expression of a rule, as nft writes it: {"match": {...}}, {"goto": {"target": "x"}}."""


@dataclass(frozen=True)
class BaseChain:
    """A base chain.

    Attributes:
        key: Family, table, name.
        kind: "nat", "filter", "route".
        hook: Its hook, such as "PREROUTING".
        priority: Its priority; lower ones run earlier.
        policy: "ACCEPT", "DROP".
        handle: Its handle, which grows with each new chain of the table, 0 = not known.
    """

    key: ChainKey
    kind: str
    hook: str
    priority: int
    policy: str
    handle: int = 0


@dataclass(frozen=True)
class NftListing:
    """A whole listing of nft.

    Attributes:
        ruleset: Chains and rules.
        maps: Maps by family, table and name.
        sets: Elements of sets as nft writes them in JSON, by family, table and name.
        bases: The base chains.
        expressions: Expressions of each rule.
    """

    ruleset: Ruleset
    maps: Mapping[ChainKey, NftMap] = field(default_factory=dict)
    sets: Mapping[ChainKey, tuple[Json, ...]] = field(default_factory=dict)
    bases: tuple[BaseChain, ...] = ()
    expressions: Mapping[Handle, tuple[Expression, ...]] = field(default_factory=dict)


def parse(text: str, comments: Mapping[Handle, str] | None = None, netns: int = 0, generation: str = "") -> NftListing:
    """Parses a listing.

    Args:
        text: Output of nft.
        comments: Comments that nft does not show, by handle.
        netns: Ruleset.netns, inode.
        generation: Ruleset.generation.

    Raises:
        ValueError: The text is not JSON, or not of the form that nft writes.
    """
    chains: dict[ChainKey, list[Rule]] = {}
    policies: dict[ChainKey, str] = {}
    maps: dict[ChainKey, NftMap] = {}
    sets: dict[ChainKey, tuple[Json, ...]] = {}
    expressions: dict[Handle, tuple[Expression, ...]] = {}
    bases: list[BaseChain] = []
    listed: Json = json.loads(text)
    for entry in as_list(member(listed, "nftables")):
        kind, value = only_member(entry)
        if kind == "chain":
            key, body = _key(value, "name"), as_object(value)
            chains.setdefault(key, [])
            if "hook" in body:
                policies[key] = as_text(body.get("policy", "accept")).upper()
                hook, priority = as_text(body["hook"]).upper(), as_number(member(body, "prio"))
                handle = as_number(body.get("handle", 0))
                bases.append(BaseChain(key, as_text(member(body, "type")), hook, priority, policies[key], handle))
        elif kind == "rule":
            rules = chains.setdefault(_key(value, "chain"), [])
            rule, body_of_rule = parse_rule(as_object(value), len(rules) + 1, comments or {})
            rules.append(rule)
            expressions[rule.family, rule.table, rule.chain, rule.handle] = body_of_rule
        elif kind == "map":
            found = parse_map(as_object(value))
            maps[found.family, found.table, found.name] = found
        elif kind == "set":
            sets[_key(value, "name")] = tuple(as_list(as_object(value).get("elem", [])))
    ruleset = Ruleset("nft", netns, generation, {key: tuple(rules) for key, rules in chains.items()}, policies)
    return NftListing(ruleset, maps, sets, tuple(bases), expressions)


def _key(value: Json, name: str) -> ChainKey:
    """Family, table and name of an object; `name`: the member that has the name."""
    return as_text(member(value, "family")), as_text(member(value, "table")), as_text(member(value, name))


def parse_rule(body: JsonObject, number: int, comments: Mapping[Handle, str]) -> tuple[Rule, tuple[Expression, ...]]:
    """A rule, and its expressions.

    Args:
        body: The rule as nft writes it.
        number: Its number in its chain, from 1.
        comments: Comments that nft does not show, by handle.
    """
    # A statement that nft cannot write as JSON, such as the update of a map, is given as text.
    expressions: list[Expression] = [{"text": e} if isinstance(e, str) else as_object(e) for e in as_list(member(body, "expr"))]
    handle = as_number(member(body, "handle"))
    family, table, chain = _key(body, "chain")
    comment = _comment(body) or comments.get((family, table, chain, handle), "")
    parts = [expression(e) for e in expressions]
    text = " ".join(p for p in parts if p)
    if comment:
        text = text.replace('xt match "comment"', f'comment "{comment}"') if 'xt match "comment"' in text else (
            f'{text} comment "{comment}"'
        )  # fmt: skip
    return Rule(family, table, chain, number, text, comment, _target(expressions), handle), tuple(expressions)


def _comment(body: JsonObject) -> str:
    comment = body.get("comment")
    return str(comment) if comment else ""


def _target(expressions: list[Expression]) -> str:
    """The target of the last statement: a chain, or its action named as in iptables."""
    for e in reversed(expressions):
        kind, body = only_member(e)
        if kind in ("jump", "goto"):
            return str(member(body, "target"))
        if kind == "xt" and body is not None and as_object(body).get("type") == "target":
            return str(member(body, "name"))
        if kind in ("accept", "drop", "return", "reject", "masquerade", "dnat", "snat", "redirect", "queue"):
            return kind.upper()
        if kind == "mangle" and member(body, "key") == {"meta": {"key": "mark"}}:
            return "MARK"
    return ""


def parse_map(body: JsonObject) -> NftMap:
    """A map from the object that nft writes."""
    elements = {}
    for entry in as_list(body.get("elem", [])):
        if not isinstance(entry, list):
            continue
        key, value = as_pair(entry)
        comment = ""
        if isinstance(key, dict) and "elem" in key:
            element = as_object(key["elem"])
            key, comment = member(element, "val"), _comment(element)
        parts = tuple(map(operand, as_list(key["concat"]) if isinstance(key, dict) and "concat" in key else [key]))
        verdict = expression(value) if isinstance(value, dict) and "concat" not in value else operand(value)
        elements[parts] = ListedElement(parts, verdict, comment)
    return NftMap(*_key(body, "name"), _comment(body), elements)
