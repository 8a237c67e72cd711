# SPDX-License-Identifier: Apache-2.0
"""Dumps nftables from the kernel: tables, chains, rules in order with their handles, verdict maps.

The kernel does not give the text of a rule (tracer/rules/nftables/listing.py does). It gives the order and the handles by which
hits are joined, and what the tools hide: the comment of a rule of iptables-nft, and the elements of an unnamed map.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tracer.model.rule import NFT_FAMILIES, ChainKey
from tracer.node.nfnetlink import MOST, DumpInterrupted, Nfnetlink, TooManyMessages, attribute, attributes, items, number, text
from tracer.rules.nftables import verdict_maps
from tracer.rules.nftables.netlink_sets import SetDefinition, UnreadElements
from tracer.rules.nftables.user_data import user_data
from tracer.rules.nftables.verdict_maps import MapElement, VerdictMap, element
from tracer.rules.xt_targets import NO_HOTDROP_MATCHES
from tracer.util.lazy import LazyList
from tracer.util.reading_progress import rules_read

GETTABLE, GETCHAIN, GETRULE, GETSET, GETSETELEM, GETGEN = 1, 4, 7, 10, 13, 16
DROP, ACCEPT, RETURN = 0, 1, 0xFFFFFFFB
MOST_SETS_READ = 2000
"""Most sets and maps of a namespace up to which the elements of unnamed ones are read with the rules. The kernel looks each set
up in a list, so reading all of n sets takes time by the square of n: minutes for 44,000."""
MOST_ELEMENTS = 3 * MOST
"""Most elements of all sets of a listing that are kept, some 200 bytes each. 44,000 Services with 3 endpoints have 225,000."""
_HEAD = struct.Struct("=HH").unpack_from
_VERDICT_REGISTER = 0
_COMMENT = 0
"""Kind of nft's user data that has the comment."""
_FAMILY_NUMBERS = {name: number for number, name in NFT_FAMILIES.items()}
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
        kind: Its type ("nat"), "" = no base chain.
        hook: Its hook (NFTA_HOOK_*).
        raws: Its rules as the kernel gives them (NFTA_RULE_*), () = not known.
    """

    handle: int
    policy: str = ""
    rules: Sequence[DumpedRule] = ()
    handles: Sequence[int] = ()
    kind: str = ""
    hook: bytes = b""
    raws: Sequence[bytes] = ()

    def __post_init__(self) -> None:
        self.handles = self.handles or [rule.handle for rule in self.rules]


@dataclass(frozen=True)
class Dump:
    """The dump of one generation.

    Attributes:
        generation: Its number.
        tables: Handles of tables, by family and name.
        chains: Chains by family, table and name.
        maps: Verdict maps by family, table and name. Unnamed ones are left out where there are many sets.
        sets: All sets and maps, without their elements.
    """

    generation: int
    tables: Mapping[tuple[str, str], int]
    chains: Mapping[ChainKey, DumpedChain]
    maps: Mapping[ChainKey, VerdictMap]
    sets: Mapping[ChainKey, SetDefinition] = field(default_factory=dict)

    @property
    def has_many_sets(self) -> bool:
        """Whether reading the elements of all sets, as nft does, would take too long."""
        return len(self.sets) > MOST_SETS_READ


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
        chains[key] = _chain(a, policy, *of_chain.get((family, a.get(1, b""), a.get(3, b"")), ([], [])))
    sets = {
        (NFT_FAMILIES.get(family, str(family)), text(a.get(1)), text(a.get(2))): SetDefinition(raw)
        for _, family, raw in nfnetlink.dump(GETSET)
        for a in (attributes(raw),)
    }
    return Dump(now, tables, chains, _maps(nfnetlink, sets), sets)


def _chain(raw: Mapping[int, bytes], policy: str, handles: list[int], raws: list[bytes]) -> DumpedChain:
    rules = LazyList(len(raws), lambda at: dumped_rule(attributes(raws[at])))
    return DumpedChain(number(raw.get(2)), policy, rules, handles, text(raw.get(7)), raw.get(4, b""), raws)


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


def _maps(nfnetlink: Nfnetlink, sets: Mapping[ChainKey, SetDefinition]) -> dict[ChainKey, VerdictMap]:
    out: dict[ChainKey, VerdictMap] = {}
    for key, found in sets.items():
        if not found.has_verdicts or (found.is_anonymous and len(sets) > MOST_SETS_READ):
            continue
        elements: list[MapElement] = []
        room = MOST - sum(len(known.elements) for known in out.values())
        for each in _iter_elements(nfnetlink, key):
            elements.append(element(each))
            if len(elements) > room:
                raise TooManyMessages(f"their verdict maps have more than {MOST} elements")
        a = attributes(found.raw)
        key_type, key_length = number(a.get(4)), number(a.get(5))
        out[key] = VerdictMap(key_type, key_length, tuple(elements), number(a.get(3)), verdict_maps.parts(a.get(9, b"")))
    return out


def _iter_elements(nfnetlink: Nfnetlink, key: ChainKey) -> Iterator[bytes]:
    """The attributes (NFTA_SET_ELEM_*) of the elements of a set."""
    family, table, name = key
    for _, _, part in nfnetlink.iter_dump(GETSETELEM, _FAMILY_NUMBERS.get(family, 0), attribute(1, table) + attribute(2, name)):
        for _, each in items(attributes(part).get(3, b"")):
            yield each


class SetElements:
    """Reads the elements of sets of one generation on demand, in the network namespace of the thread that reads first.

    Elements that time out, or that packets add, change within a generation.

    Args:
        generation: The generation. After a change of the rules nothing is read any more.
    """

    def __init__(self, generation: int) -> None:
        self._generation, self._count = generation, 0
        self._known: dict[ChainKey, tuple[bytes, ...]] = {}
        self._nfnetlink: Nfnetlink | None = None
        self._is_closed = False

    def read(self, key: ChainKey) -> Sequence[bytes]:
        """The elements of a set (NFTA_SET_ELEM_*).

        Raises:
            UnreadElements: The rules have changed, there are too many elements, or the kernel refused.
        """
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._read(key)
        return found

    def read_unnamed(self, sets: Mapping[ChainKey, SetDefinition]) -> None:
        """Reads the elements of unnamed sets ahead; those that cannot be read stay unread."""
        for key, found in sets.items():
            if found.is_anonymous:
                with suppress(UnreadElements):
                    self.read(key)

    def _read(self, key: ChainKey) -> tuple[bytes, ...]:
        if self._is_closed:
            raise UnreadElements("they were not read")
        try:
            self._nfnetlink = self._nfnetlink or Nfnetlink()
            found = []
            for each in _iter_elements(self._nfnetlink, key):
                found.append(each)
                if self._count + len(found) > MOST_ELEMENTS:
                    self.close()
                    raise UnreadElements(f"there are more than {MOST_ELEMENTS} in all sets")
            if generation(self._nfnetlink) != self._generation:
                raise UnreadElements("the rules have changed since")
        except (OSError, DumpInterrupted) as e:
            self.close()
            raise UnreadElements("the kernel did not give them") from e
        self._count += len(found)
        return tuple(found)

    def close(self) -> None:
        """Ends the reading; what was read stays."""
        self._is_closed = True
        if self._nfnetlink:
            self._nfnetlink.close()
        self._nfnetlink = None


def comment_of(userdata: bytes) -> str:
    """The comment in nft's user data of a rule or an element; "" = none."""
    return text(user_data(userdata).get(_COMMENT))


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
