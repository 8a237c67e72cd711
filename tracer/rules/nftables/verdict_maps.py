# SPDX-License-Identifier: Apache-2.0
"""Verdict maps: finds the element of a key, and formats it as nft does."""

from __future__ import annotations

import socket
import sys
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from tracer.node.nfnetlink import attributes, items, number, text

INTERVAL_END, CATCH_ALL = 1, 2
INTERVAL, TIMEOUT = 4, 16
"""Flags of a set: its keys are ranges; its elements may have a timeout."""
_CODES = {
    0: "drop",
    1: "accept",
    0xFFFFFFFD: "jump",
    0xFFFFFFFC: "goto",
    0xFFFFFFFB: "return",
    0xFFFFFFFF: "continue",
    3: "queue",
}
_PROTOCOLS = {1: "icmp", 2: "igmp", 6: "tcp", 17: "udp", 33: "dccp", 50: "esp", 51: "ah", 58: "ipv6-icmp", 132: "sctp"}
_STATES = ((1, "invalid"), (2, "established"), (4, "related"), (8, "new"), (64, "untracked"))
_TIMEOUT_ATTRIBUTES = frozenset({4, 5})
"""Attributes of an element with a timeout: the timeout, and the time left."""
_SIZES = {7: 4, 8: 16, 9: 6, 10: 2, 12: 1, 13: 2, 14: 1, 15: 1, 19: 4, 20: 4, 26: 4, 29: 1, 41: 16}
"""Bytes of nft's data types (TYPE_*), by number."""


@dataclass(frozen=True, slots=True)
class MapElement:
    """One element.

    Attributes:
        key: Its key, bytes as in the registers.
        verdict: Its verdict, such as "goto X" or "drop".
        end: Last key of a range given as one element, b"" = no range.
        flags: INTERVAL_END or CATCH_ALL.
        times_out: Whether it is removed after a time, without a new generation of the rules.
    """

    key: bytes
    verdict: str
    end: bytes = b""
    flags: int = 0
    times_out: bool = False

    @property
    def is_catch_all(self) -> bool:
        return bool(self.flags & CATCH_ALL)


@dataclass
class _Index:
    """An index of the elements of a map.

    Attributes:
        by_key: Elements by key.
        catch_all: Catch-all elements.
        ordered: Elements that begin or end a range, by key.
        has_ranges: Whether there are elements with both ends of a range.
        has_range_ends: Whether there are elements that end a range.
    """

    by_key: dict[bytes, list[MapElement]] = field(default_factory=dict)
    catch_all: list[MapElement] = field(default_factory=list)
    ordered: list[MapElement] = field(default_factory=list)
    has_ranges: bool = False
    has_range_ends: bool = False


@dataclass(frozen=True)
class VerdictMap:
    """A map from keys to verdicts.

    Attributes:
        key_type: nft's number of the key's type, 6 bits per part.
        key_length: Length of a key, bytes.
        elements: Its elements.
        flags: Flags of the set.
        parts: Bytes of each part of a concatenated key, () = not known.
    """

    key_type: int
    key_length: int
    elements: tuple[MapElement, ...]
    flags: int = 0
    parts: tuple[int, ...] = ()

    def find(self, key: bytes) -> MapElement | None:
        """The element for a key if none has timed out: that of the key itself, of a range with it, or the catch-all."""
        return next(iter(self.answers(key)), None)

    def answers(self, key: bytes) -> list[MapElement]:
        """The elements that may be used for a key: the first without an elapsed timeout is. At most one has no timeout."""
        out = []
        for e in (*self._containing(key), *self._index.catch_all):
            out.append(e)
            if not e.times_out:
                break
        return out

    def _containing(self, key: bytes) -> list[MapElement]:
        """The elements with this key, or with a range that contains it."""
        index = self._index
        if not self._has_intervals:
            return (
                [e for e in self.elements if not e.is_catch_all and self._is_within(key, e)]
                if index.has_ranges
                else index.by_key.get(key, [])
            )
        # At the border of two ranges there are two elements with one key: the one that begins a range is used, and stands last.
        at = bisect_right(index.ordered, key, key=lambda e: e.key)
        nearest = index.ordered[at - 1] if at else None
        return [nearest] if nearest and not nearest.flags & INTERVAL_END else []

    @cached_property
    def _index(self) -> _Index:
        """The index of the elements, for a look-up per packet."""
        found = _Index()
        for e in self.elements:
            if e.is_catch_all:
                found.catch_all.append(e)
            else:
                found.by_key.setdefault(e.key, []).append(e)
                found.has_ranges |= bool(e.end)
                found.has_range_ends |= bool(e.flags & INTERVAL_END)
        if found.has_range_ends or self.flags & INTERVAL:
            keyed = (e for same in found.by_key.values() for e in same if not e.end)
            found.ordered = sorted(keyed, key=lambda e: (e.key, not e.flags & INTERVAL_END))
        return found

    @property
    def _has_intervals(self) -> bool:
        """Whether each element begins or ends a range. Ranges of concatenated keys have both ends in one element."""
        index = self._index
        return index.has_range_ends or bool(self.flags & INTERVAL and not index.has_ranges and len(self._parts()) == 1)

    def _is_within(self, key: bytes, e: MapElement) -> bool:
        """Whether each part of the key is in the element's range of that part."""
        at = 0
        for size in self._parts():
            padded = (size + 3) & ~3 if size else self.key_length
            if not e.key[at : at + padded] <= key[at : at + padded] <= e.end[at : at + padded]:
                return False
            at += padded
        return True

    def _types(self) -> list[int]:
        out: list[int] = []
        rest = self.key_type
        while rest:
            out.insert(0, rest & 63)
            rest >>= 6
        return out

    def _parts(self) -> list[int]:
        if self.parts:
            return list(self.parts)
        sizes = [_SIZES.get(t, 0) for t in self._types()]
        return sizes if all(sizes) else [0]

    def _write_key(self, key: bytes) -> str:
        types = self._types()
        if len(types) == 1:
            return _write(types[0], key[: _SIZES.get(types[0], len(key))])
        words, at = [], 0
        for kind in types:
            size = _SIZES.get(kind)
            if size is None:
                return "0x" + key.hex()
            words.append(_write(kind, key[at : at + size]))
            at += (size + 3) & ~3
        return " . ".join(words)

    def write(self, e: MapElement) -> str:
        """Formats an element as nft lists it: "tcp . 30285 : goto service-X"."""
        key = "*" if e.flags & CATCH_ALL else self._write_key(e.key)
        if e.end and e.end != e.key:
            key += "-" + self._write_key(e.end)
        elif self._has_intervals and not e.flags & CATCH_ALL:
            key += self._range_end(e)
        return f"{key} : {e.verdict}"

    def _range_end(self, e: MapElement) -> str:
        ordered = self._index.ordered
        above = islice(ordered, bisect_right(ordered, e.key, key=lambda o: o.key), None)
        after = next((o.key for o in above if o.flags & INTERVAL_END), b"")
        if not after and not self.flags & INTERVAL:
            return ""
        last = (int.from_bytes(after, "big") - 1 if after else (1 << 8 * len(e.key)) - 1).to_bytes(len(e.key), "big")
        return "" if last == e.key else "-" + self._write_key(last)


def _write(kind: int, raw: bytes) -> str:
    if kind == 7 and len(raw) == 4:
        return socket.inet_ntop(socket.AF_INET, raw)
    if kind == 8 and len(raw) == 16:
        return socket.inet_ntop(socket.AF_INET6, raw)
    if kind == 12:
        return _PROTOCOLS.get(raw[0], str(raw[0])) if raw else ""
    if kind in (13, 14, 29):
        return str(int.from_bytes(raw, "big"))
    if kind == 19:
        return f"0x{int.from_bytes(raw, 'little'):08x}"
    if kind == 26:
        bits = int.from_bytes(raw, "little")
        return ",".join(name for bit, name in _STATES if bits & bit)
    if kind == 41:
        return '"' + text(raw.split(b"\0")[0]) + '"'
    if kind == 9:
        return raw.hex(":")
    return "0x" + raw.hex()


def element(raw: bytes) -> MapElement:
    """Decodes an element from its attributes (NFTA_SET_ELEM_*)."""
    a = attributes(raw)
    verdict = attributes(attributes(a.get(2, b"")).get(2, b""))
    word = _CODES.get(number(verdict.get(1)), "") if verdict else ""
    target = f"{word} {text(verdict[2])}" if 2 in verdict else word
    key, end = (attributes(a.get(kind, b"")).get(1, b"") for kind in (1, 10))
    return MapElement(key, sys.intern(target), end, number(a.get(3)), bool(a.keys() & _TIMEOUT_ATTRIBUTES))


def parts(description: bytes) -> tuple[int, ...]:
    """Bytes of each part of a concatenated key, from the description of a set (NFTA_SET_DESC); () = not known."""
    fields = items(attributes(description).get(2, b""))
    return tuple(number(attributes(field).get(1)) for _, field in fields)
