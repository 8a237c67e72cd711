# SPDX-License-Identifier: Apache-2.0
"""Parses the output of `nft -j list ruleset`: rules with their expressions, sets, maps, base chains.

nft hides the content of iptables-nft's matches and targets: a comment is only {"xt": {"name": "comment"}}. A caller that has
the comments from another source, such as netlink, passes them by handle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tracer.model.rule import ChainKey, Rule, Ruleset
from tracer.rules.nftables.format import expression, operand

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


Expression = dict[str, Any]
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
    sets: Mapping[ChainKey, tuple[Any, ...]] = field(default_factory=dict)
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
        ValueError: The text is not JSON.
    """
    chains: dict[ChainKey, list[Rule]] = {}
    policies: dict[ChainKey, str] = {}
    maps: dict[ChainKey, NftMap] = {}
    sets: dict[ChainKey, tuple[Any, ...]] = {}
    expressions: dict[Handle, tuple[Expression, ...]] = {}
    bases: list[BaseChain] = []
    for entry in json.loads(text)["nftables"]:
        ((kind, body),) = entry.items()
        if kind == "chain":
            key = (body["family"], body["table"], body["name"])
            chains.setdefault(key, [])
            if "hook" in body:
                policies[key] = body.get("policy", "accept").upper()
                handle = int(body.get("handle", 0))
                bases.append(BaseChain(key, body["type"], body["hook"].upper(), int(body["prio"]), policies[key], handle))
        elif kind == "rule":
            rules = chains.setdefault((body["family"], body["table"], body["chain"]), [])
            # A statement that nft cannot write as JSON, such as the update of a map, is given as text.
            body = {**body, "expr": [{"text": e} if isinstance(e, str) else e for e in body["expr"]]}
            rules.append(_rule(body, len(rules) + 1, comments or {}))
            expressions[body["family"], body["table"], body["chain"], body["handle"]] = tuple(body["expr"])
        elif kind == "map":
            found = _map(body)
            maps[found.family, found.table, found.name] = found
        elif kind == "set":
            sets[body["family"], body["table"], body["name"]] = tuple(body.get("elem", ()))
    ruleset = Ruleset("nft", netns, generation, {key: tuple(rules) for key, rules in chains.items()}, policies)
    return NftListing(ruleset, maps, sets, tuple(bases), expressions)


def _rule(body: dict[str, Any], number: int, comments: Mapping[Handle, str]) -> Rule:
    handle: Handle = (body["family"], body["table"], body["chain"], body["handle"])
    comment: str = body.get("comment") or comments.get(handle, "")
    parts = [expression(e) for e in body["expr"]]
    text = " ".join(p for p in parts if p)
    if comment:
        text = text.replace('xt match "comment"', f'comment "{comment}"') if 'xt match "comment"' in text else (
            f'{text} comment "{comment}"'
        )  # fmt: skip
    return Rule(*handle[:3], number, text, comment, _target(body["expr"]), body["handle"])


def _target(expressions: list[dict[str, Any]]) -> str:
    """The target of the last statement: a chain, or its action named as in iptables."""
    for e in reversed(expressions):
        ((kind, body),) = e.items()
        if kind in ("jump", "goto"):
            return str(body["target"])
        if kind == "xt" and body.get("type") == "target":
            return str(body["name"])
        if kind in ("accept", "drop", "return", "reject", "masquerade", "dnat", "snat", "redirect", "queue"):
            return str(kind).upper()
        if kind == "mangle" and body["key"] == {"meta": {"key": "mark"}}:
            return "MARK"
    return ""


def _map(body: dict[str, Any]) -> NftMap:
    elements = {}
    for entry in body.get("elem", []):
        if not isinstance(entry, list):
            continue
        key, value = entry
        comment = ""
        if isinstance(key, dict) and "elem" in key:
            key, comment = key["elem"]["val"], key["elem"].get("comment", "")
        parts = tuple(operand(p) for p in key["concat"]) if isinstance(key, dict) and "concat" in key else (operand(key),)
        verdict = expression(value) if isinstance(value, dict) and "concat" not in value else operand(value)
        elements[parts] = ListedElement(parts, verdict, comment)
    return NftMap(body["family"], body["table"], body["name"], body.get("comment", ""), elements)
