# SPDX-License-Identifier: Apache-2.0
"""What the kernel itself says about its nftables rules: tables, chains, rules in order with their handles, verdict maps.

It does not say a rule as its user would write it (tracer/rules/nftables/listing.py), but it is the order and the handles that
hits are joined by, and it has what the tools hide: the comment of a rule of iptables-nft, and the elements of an unnamed map.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracer.model.rule import NFT_FAMILIES, ChainKey
from tracer.node.nfnetlink import MOST, Nfnetlink, TooManyMessages, attribute, attributes, items, number, text
from tracer.rules.nftables import verdict_maps
from tracer.rules.nftables.verdict_maps import MapElement, VerdictMap, element
from tracer.rules.xt_targets import NO_HOTDROP_MATCHES
from tracer.util.lazy import LazyList

GETTABLE, GETCHAIN, GETRULE, GETSET, GETSETELEM, GETGEN = 1, 4, 7, 10, 13, 16
DROP, ACCEPT, RETURN = 0, 1, 0xFFFFFFFB
_VERDICT_TYPE = 0xFFFFFF00
_HEAD = struct.Struct("=HH").unpack_from
_VERDICT_REGISTER = 0
_VERDICTS = {DROP: "DROP", ACCEPT: "ACCEPT", RETURN: "RETURN", 3: "QUEUE"}
_SIMPLE_TARGETS = {"masq": "MASQUERADE", "redir": "REDIRECT", "reject": "REJECT", "queue": "QUEUE", "tproxy": "TPROXY",
                   "log": "LOG", "notrack": "NOTRACK", "dup": "DUP", "fwd": "FWD"}  # fmt: skip


@dataclass(frozen=True)
class DumpedRule:
    """One rule. target: as Rule.target. lookup: the set its verdict is looked up in, and which byte of the registers the key
    begins at; None when it has no verdict map, or its key may be gone from the registers when the rule has acted. matches:
    those of iptables that may throw a packet away."""

    handle: int
    comment: str = ""
    target: str = ""
    lookup: tuple[str, int] | None = None
    matches: tuple[str, ...] = ()


@dataclass
class DumpedChain:
    """One chain. policy: "" when it is no base chain. rules: may be decoded when they are asked for; handles: theirs, known
    without that."""

    handle: int
    policy: str = ""
    rules: Sequence[DumpedRule] = ()
    handles: Sequence[int] = ()

    def __post_init__(self) -> None:
        self.handles = self.handles or [rule.handle for rule in self.rules]


@dataclass(frozen=True)
class Dump:
    """Everything of one generation. tables: their handles by family and name. maps: by family, table and name."""

    generation: int
    tables: Mapping[tuple[str, str], int]
    chains: Mapping[ChainKey, DumpedChain]
    maps: Mapping[ChainKey, VerdictMap]


def generation(nfnetlink: Nfnetlink) -> int:
    """The number of the ruleset that is in force."""
    return number(attributes(nfnetlink.get(GETGEN)[2]).get(1))


def read(nfnetlink: Nfnetlink) -> Dump:
    """Raises Interrupted when the rules changed under way (or OSError): try again."""
    now = generation(nfnetlink)
    tables: dict[tuple[str, str], int] = {}
    for _, family, raw in nfnetlink.dump(GETTABLE):
        a = attributes(raw)
        tables[NFT_FAMILIES.get(family, str(family)), text(a.get(1))] = number(a.get(4))
    of_chain: dict[tuple[int, bytes, bytes], tuple[list[int], list[bytes]]] = {}
    for _, family, raw in nfnetlink.dump(GETRULE):
        table, chain, handle = _whose(raw)
        handles, raws = of_chain.setdefault((family, table, chain), ([], []))
        handles.append(handle)
        raws.append(raw)
    chains: dict[ChainKey, DumpedChain] = {}
    for _, family, raw in nfnetlink.dump(GETCHAIN):
        a = attributes(raw)
        policy = _VERDICTS.get(number(a[5]), "") if 5 in a else "ACCEPT" if 4 in a else ""
        key = NFT_FAMILIES.get(family, str(family)), text(a.get(1)), text(a.get(3))
        chains[key] = _chain(number(a.get(2)), policy, *of_chain.get((family, a.get(1, b""), a.get(3, b"")), ([], [])))
    return Dump(now, tables, chains, _maps(nfnetlink))


def _chain(handle: int, policy: str, handles: list[int], raws: list[bytes]) -> DumpedChain:
    return DumpedChain(handle, policy, LazyList(len(raws), lambda at: dumped_rule(attributes(raws[at]))), handles)


def _whose(raw: bytes) -> tuple[bytes, bytes, int]:
    """Table, chain and handle of a rule: its first attributes, in this order (nf_tables_fill_rule_info in the kernel)."""
    first, kind = _HEAD(raw, 0)
    second = first + 3 & ~3
    length, next_kind = _HEAD(raw, second)
    third = second + (length + 3 & ~3)
    if (kind, next_kind, _HEAD(raw, third)[1]) == (1, 2, 3):
        return raw[4:first], raw[second + 4 : second + length], int.from_bytes(raw[third + 4 : third + 12], "big")
    a = attributes(raw)
    return a.get(1, b""), a.get(2, b""), number(a.get(3))


def _maps(nfnetlink: Nfnetlink) -> dict[ChainKey, VerdictMap]:
    out: dict[ChainKey, VerdictMap] = {}
    for _, family, raw in nfnetlink.dump(GETSET):
        a = attributes(raw)
        if number(a.get(6)) != _VERDICT_TYPE:
            continue
        table, name = text(a.get(1)), text(a.get(2))
        elements: list[MapElement] = []
        room = MOST - sum(len(known.elements) for known in out.values())
        for _, _, part in nfnetlink.trace(GETSETELEM, family, attribute(1, table) + attribute(2, name)):
            elements += [element(e) for _, e in items(attributes(part).get(3, b""))]
            if len(elements) > room:
                raise TooManyMessages(f"their verdict maps have more than {MOST} elements")
        key_type, key_length = number(a.get(4)), number(a.get(5))
        flags, parts = number(a.get(3)), verdict_maps.parts(a.get(9, b""))
        key = NFT_FAMILIES.get(family, str(family)), table, name
        out[key] = VerdictMap(key_type, key_length, tuple(elements), flags, parts)
    return out


def comment_of(userdata: bytes) -> str:
    """The comment that nft keeps with a rule or an element: type, length, value; type 0 is the comment."""
    at = 0
    while at + 2 <= len(userdata):
        kind, length = userdata[at], userdata[at + 1]
        if kind == 0:
            return text(userdata[at + 2 : at + 2 + length])
        at += 2 + length
    return ""


def dumped_rule(a: Mapping[int, bytes]) -> DumpedRule:
    """A rule from its attributes (NFTA_RULE_*)."""
    comment, target = comment_of(a.get(7, b"")), ""
    lookup: tuple[str, int] | None = None
    lookups = 0
    matches: list[str] = []
    for _, raw in items(a.get(4, b"")):
        expression = attributes(raw)
        name = text(expression.get(1))
        data = attributes(expression.get(2, b"")) if name in _TOLD_MORE else {}
        if name == "match" and text(data.get(1)) == "comment":
            comment = text(data.get(3, b"").split(b"\0")[0])
        elif name == "match":
            matches += {text(data.get(1))} - NO_HOTDROP_MATCHES
        elif name == "lookup":
            if 3 in data and number(data[3]) == _VERDICT_REGISTER:
                lookup, lookups = (text(data.get(1)), _place(number(data.get(2)))), lookups + 1
        else:
            target = _target(name, data) or target
            lookup = lookup if name in _LEAVE_REGISTERS else None
    # Behind "continue" a rule goes on: it may put something else where the key was, or look up another verdict.
    lookup = lookup if lookups == 1 else None
    return DumpedRule(number(a.get(3)), comment, target, lookup, tuple(matches))


_LEAVE_REGISTERS = frozenset({"counter", "log", "limit", "quota", "last", "notrack"})
"""Expressions behind which a map's key is still where it was looked up."""
_TOLD_MORE = frozenset({"match", "target", "immediate", "lookup", "nat", "meta", "ct"})


def _target(name: str, data: Mapping[int, bytes]) -> str:
    if name == "target":
        return text(data.get(1))
    if name == "immediate" and 1 in data and number(data[1]) == _VERDICT_REGISTER:
        verdict = attributes(attributes(data.get(2, b"")).get(2, b""))
        return text(verdict[2]) if 2 in verdict else _VERDICTS.get(number(verdict.get(1)) & 0xFFFFFFFF, "")
    if name == "nat":
        return "DNAT" if number(data.get(1)) == 1 else "SNAT"
    if name == "meta" and 3 in data and number(data.get(2)) == 3:
        return "MARK"
    return _SIMPLE_TARGETS.get(name, "")


def _place(register: int) -> int:
    """Where, in bytes after the verdict register, a register begins: four of 16 bytes (1-4), or sixteen of 4 (8-23)."""
    return (register - 1) * 16 if register < 8 else (register - 8) * 4
