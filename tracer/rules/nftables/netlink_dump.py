# SPDX-License-Identifier: Apache-2.0
"""Dumps nftables from the kernel: tables, chains, rules in order with their handles, verdict maps.

The kernel does not give the text of a rule (tracer/rules/nftables/listing.py does). It gives the order and the handles by which
hits are joined, and what the tools hide: the comment of a rule of iptables-nft, and the elements of an unnamed map.
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
from tracer.util.reading_progress import rules_read

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
    """One rule.

    Attributes:
        handle: Its handle.
        comment: Its comment, "" = none.
        target: As Rule.target.
        lookup: (verdict map, byte of the registers at which the key begins). None = no verdict map, or the key may be
            overwritten after the rule has acted.
        matches: Matches of iptables that may set hotdrop.
    """

    handle: int
    comment: str = ""
    target: str = ""
    lookup: tuple[str, int] | None = None
    matches: tuple[str, ...] = ()


@dataclass
class DumpedChain:
    """One chain.

    Attributes:
        handle: Its handle.
        policy: Its policy, "" = no base chain.
        rules: Its rules, which may be decoded on demand.
        handles: Handles of its rules, known without decoding.
    """

    handle: int
    policy: str = ""
    rules: Sequence[DumpedRule] = ()
    handles: Sequence[int] = ()

    def __post_init__(self) -> None:
        self.handles = self.handles or [rule.handle for rule in self.rules]


@dataclass(frozen=True)
class Dump:
    """The dump of one generation.

    Attributes:
        generation: Its number.
        tables: Handles of tables, by family and name.
        chains: Chains by family, table and name.
        maps: Verdict maps by family, table and name.
    """

    generation: int
    tables: Mapping[tuple[str, str], int]
    chains: Mapping[ChainKey, DumpedChain]
    maps: Mapping[ChainKey, VerdictMap]


def generation(nfnetlink: Nfnetlink) -> int:
    """The number of the generation in force."""
    return number(attributes(nfnetlink.get(GETGEN)[2]).get(1))


def read(nfnetlink: Nfnetlink) -> Dump:
    """Dumps the generation in force.

    Raises:
        DumpInterrupted: The rules changed meanwhile; try again.
        TooManyMessages: There are too many rules or elements.
        OSError: The kernel refused.
    """
    now = generation(nfnetlink)
    tables: dict[tuple[str, str], int] = {}
    for _, family, raw in nfnetlink.dump(GETTABLE):
        a = attributes(raw)
        tables[NFT_FAMILIES.get(family, str(family)), text(a.get(1))] = number(a.get(4))
    of_chain: dict[tuple[int, bytes, bytes], tuple[list[int], list[bytes]]] = {}
    for _, family, raw in nfnetlink.dump(GETRULE, watch=rules_read.add):
        table, chain, handle = _rule_key(raw)
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


def _rule_key(raw: bytes) -> tuple[bytes, bytes, int]:
    """(table, chain, handle) of a rule: its first attributes, in this order (nf_tables_fill_rule_info in the kernel)."""
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
        for _, _, part in nfnetlink.iter_dump(GETSETELEM, family, attribute(1, table) + attribute(2, name)):
            elements += [element(e) for _, e in items(attributes(part).get(3, b""))]
            if len(elements) > room:
                raise TooManyMessages(f"their verdict maps have more than {MOST} elements")
        key_type, key_length = number(a.get(4)), number(a.get(5))
        flags, parts = number(a.get(3)), verdict_maps.parts(a.get(9, b""))
        key = NFT_FAMILIES.get(family, str(family)), table, name
        out[key] = VerdictMap(key_type, key_length, tuple(elements), flags, parts)
    return out


def comment_of(userdata: bytes) -> str:
    """The comment in nft's user data of a rule or an element: type, length, value; type 0 is the comment."""
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
        data = attributes(expression.get(2, b"")) if name in _DECODED_EXPRESSIONS else {}
        if name == "match" and text(data.get(1)) == "comment":
            # As iptables-nft-save is read: a rule of Calico has several.
            comment = comment or text(data.get(3, b"").split(b"\0")[0])
        elif name == "match":
            matches += {text(data.get(1))} - NO_HOTDROP_MATCHES
        elif name == "lookup":
            if 3 in data and number(data[3]) == _VERDICT_REGISTER:
                lookup, lookups = (text(data.get(1)), _register_offset(number(data.get(2)))), lookups + 1
        else:
            target = _target(name, data) or target
            lookup = lookup if name in _KEEP_REGISTERS else None
    # After "continue" a rule goes on: it may overwrite the key, or look up another verdict.
    lookup = lookup if lookups == 1 else None
    return DumpedRule(number(a.get(3)), comment, target, lookup, tuple(matches))


_KEEP_REGISTERS = frozenset({"counter", "log", "limit", "quota", "last", "notrack"})
"""Expressions that do not overwrite the key of a map in the registers."""
_DECODED_EXPRESSIONS = frozenset({"match", "target", "immediate", "lookup", "nat", "meta", "ct"})
"""Expressions with attributes that are decoded."""


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


def _register_offset(register: int) -> int:
    """Offset of a register, bytes after the verdict register: four registers of 16 bytes (1-4), or sixteen of 4 (8-23)."""
    return (register - 1) * 16 if register < 8 else (register - 8) * 4
