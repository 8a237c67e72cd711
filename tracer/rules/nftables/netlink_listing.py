# SPDX-License-Identifier: Apache-2.0
"""The listing of `nft -j` made from netlink alone, for nodes where nft is missing, too old or too slow.

Rules, sets and maps are decoded on demand. What could not be decoded is {"unknown": ...} in an expression, and a set or map
is absent if its elements could not be read, so that nothing is concluded from it. Where there are many sets, an unnamed one is
given by the kernel's name for it (@__map7) and read like a named one: reading all of them would take minutes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from tracer.model.rule import ChainKey, Rule, Ruleset
from tracer.node.nfnetlink import attributes
from tracer.rules.nftables import expression_decoder, json_parser
from tracer.rules.nftables.json_parser import BaseChain, Expression, Handle, NftListing, NftMap
from tracer.rules.nftables.netlink_dump import Dump, DumpedChain, comment_of
from tracer.rules.nftables.netlink_sets import SetDefinition, UnreadElements
from tracer.util.json_value import Json, JsonObject
from tracer.util.lazy import Lazy

_IP_HOOKS = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING", "INGRESS")
_HOOKS = {"arp": ("INPUT", "OUTPUT", "FORWARD"), "netdev": ("INGRESS", "EGRESS")}


class ElementSource(Protocol):
    """Reads the elements of sets."""

    def read(self, key: ChainKey) -> Sequence[bytes]:
        """The elements of a set (NFTA_SET_ELEM_*). Raises UnreadElements."""


class RuleTexts:
    """The rules of a dump, decoded from netlink. Decodes a rule each time it is asked for.

    Args:
        dump: The dump.
        elements: Reads the elements of unnamed sets.
    """

    def __init__(self, dump: Dump, elements: ElementSource) -> None:
        self._chains, self._sets, self._elements = dump.chains, dump.sets, elements
        self._are_read = not dump.has_many_sets

    def rule(self, key: ChainKey, place: int) -> tuple[Rule, tuple[Expression, ...]]:
        """A rule and its expressions. `place`: from 0."""
        return self._parsed(key, place, *self._decoded(key, place))

    def text(self, key: ChainKey, place: int) -> str:
        """The text of a rule with its comment, as for a rule from `nft -j`, and with its counter, as `nft list` prints it."""
        body, comment = self._decoded(key, place)
        shown: list[Expression] = [{"text": "counter"} if "counter" in each else each for each in body]
        return self._parsed(key, place, shown, comment)[0].text

    def _decoded(self, key: ChainKey, place: int) -> tuple[Sequence[Expression], str]:
        """The expressions and the comment of a rule."""
        family, table, _ = key
        chain = self._chains[key]
        raw = attributes(chain.raws[place])

        def find_set(of: str) -> SetDefinition | None:
            return self._sets.get((family, table, of))

        def read_elements(of: str) -> Sequence[bytes]:
            return self._elements.read((family, table, of))

        body = expression_decoder.decode(raw.get(4, b""), family, find_set, read_elements if self._are_read else None)
        return body, comment_of(raw.get(7, b"")) or chain.rules[place].comment

    def _parsed(
        self, key: ChainKey, place: int, body: Sequence[Expression], comment: str
    ) -> tuple[Rule, tuple[Expression, ...]]:
        """Parses a rule as nft gives it."""
        family, table, name = key
        handle = self._chains[key].handles[place]
        given: JsonObject = {"family": family, "table": table, "chain": name, "handle": handle, "expr": list(body)}
        return json_parser.parse_rule({**given, "comment": comment} if comment else given, place + 1, {})


def listing(dump: Dump, elements: ElementSource) -> NftListing:
    """The listing of a dump.

    Args:
        dump: The dump.
        elements: Reads the elements of sets of that generation.
    """
    texts = RuleTexts(dump, elements)
    places: dict[Handle, tuple[ChainKey, int]] = {}
    for key, chain in dump.chains.items():
        for place, handle in enumerate(chain.handles):
            places[(*key, handle)] = key, place

    def rules(key: ChainKey) -> tuple[Rule, ...]:
        return tuple(texts.rule(key, place)[0] for place in range(len(dump.chains[key].handles)))

    chains = Lazy(dump.chains, rules)
    policies = {key: chain.policy for key, chain in dump.chains.items() if chain.policy}
    ruleset = Ruleset("nft", 0, str(dump.generation), chains, policies)
    listed = {key: found for key, found in dump.sets.items() if dump.has_many_sets or not found.is_anonymous}
    maps = [key for key, found in listed.items() if found.is_map]
    sets = [key for key, found in listed.items() if not found.is_map]
    return NftListing(
        ruleset,
        _Readable(maps, lambda key: _map(key, dump.sets[key], elements)),
        _Readable(sets, lambda key: _elements(key, dump.sets[key], elements)),
        tuple(_base(key, chain) for key, chain in dump.chains.items() if chain.policy),
        Lazy(places, lambda handle: texts.rule(*places[handle])[1]),
    )


V = TypeVar("V")


class _Readable(Mapping[ChainKey, V]):
    """Sets or maps by key, read on demand. One that cannot be read is absent."""

    def __init__(self, keys: Collection[ChainKey], make: Callable[[ChainKey], V]) -> None:
        self._keys, self._make = dict.fromkeys(keys), make
        self._made: dict[ChainKey, V] = {}

    def __getitem__(self, key: ChainKey) -> V:
        if key not in self._keys:
            raise KeyError(key)
        if key not in self._made:
            try:
                self._made[key] = self._make(key)
            except UnreadElements:
                del self._keys[key]
                raise KeyError(key) from None
        return self._made[key]

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[ChainKey]:
        return iter(list(self._keys))

    def __len__(self) -> int:
        return len(self._keys)


def _elements(key: ChainKey, found: SetDefinition, elements: ElementSource) -> tuple[Json, ...]:
    return tuple(found.elements(elements.read(key)))


def _map(key: ChainKey, found: SetDefinition, elements: ElementSource) -> NftMap:
    family, table, name = key
    body: JsonObject = {"family": family, "table": table, "name": name, "elem": found.elements(elements.read(key))}
    return json_parser.parse_map({**body, "comment": found.comment} if found.comment else body)


def _base(key: ChainKey, chain: DumpedChain) -> BaseChain:
    hook = attributes(chain.hook)
    number = int.from_bytes(hook.get(1, b""), "big")
    priority = struct.unpack(">i", hook[2])[0] if len(hook.get(2, b"")) == 4 else 0
    names = _HOOKS.get(key[0], _IP_HOOKS)
    name = names[number] if number < len(names) else str(number)
    return BaseChain(key, chain.kind, name, priority, chain.policy, chain.handle)
