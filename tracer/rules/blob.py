"""The rules of one legacy table as the kernel has them: the blob that getsockopt(IPT_SO_GET_ENTRIES) copies out.

A rule is an entry: address part, matches, one target. Its byte offset is what the kernel side names it by, and what jumps
lead to. A chain begins at its hook's entry, or behind an ERROR target that holds its name, and ends with a rule of its own:
the policy, or the return. Structures: include/uapi/linux/netfilter{/x_tables,_ipv4/ip_tables,_ipv6/ip6_tables}.h.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tracer.lazy import Lazy

HOOKS = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
RETURN = -5
"""Verdict of RETURN in a standard target; others are -1 - NF_*, and from 0 on the offset jumped to."""
_VERDICTS = {-1: "DROP", -2: "ACCEPT", -4: "QUEUE", RETURN: "RETURN"}
_EXT = struct.Struct("<H29sB")
_SHAPES = {"ip": (112, 88), "ip6": (168, 140)}
"""Size of an entry's head, and where in it the offsets of target and next entry are."""
_COUNTERS = 16
_ERROR, _CHAIN = b"ERROR\0", 30
"""Name of the target that stands before a chain, and how long the chain's name may be."""


class BadBlob(Exception):
    """The blob is not laid out as this program knows it."""


@dataclass(frozen=True)
class Ext:
    """A match or target of a rule. at: offset of its data in the blob, by which the kernel side names it."""

    name: str
    revision: int
    at: int
    data: bytes


@dataclass(frozen=True)
class Header:
    """What a rule wants of the packet itself. Addresses as numbers, interface names as 16 bytes with a mask.

    fragment: only further fragments (IPv4). inverted: bits as in the kernel, IPT_INV_*.
    """

    src: int
    src_mask: int
    dst: int
    dst_mask: int
    iniface: int
    in_mask: int
    outiface: int
    out_mask: int
    protocol: int
    any_protocol: bool
    fragment: bool
    inverted: int

    @property
    def nothing(self) -> bool:
        """It wants nothing."""
        masks = self.src_mask | self.dst_mask | self.in_mask | self.out_mask
        return not (masks or self.inverted or self.fragment) and self.any_protocol


@dataclass
class Entry:
    """One rule. chain, number: its place; number 0 is the chain's own last rule. goto: its jump does not come back."""

    at: int
    next: int
    header: Header
    matches: tuple[Ext, ...]
    target: Ext
    goto: bool
    chain: str
    number: int

    @property
    def verdict(self) -> int | None:
        """Of a standard target, else None."""
        return struct.unpack_from("<i", self.target.data)[0] if self.target.name == "" else None

    @property
    def comment(self) -> str:
        found = next((m.data for m in self.matches if m.name == "comment"), b"")
        return found.split(b"\0")[0].decode(errors="replace")


class Table:
    """A blob, gone through once for where rules and chains begin; a rule is decoded when it is asked for.

    entries: by offset. chains: their rules, without the chain's own last one. hooks: offset of a base chain's first rule by
    hook number; underflows: of its policy. starts: chain by the offset of its first rule. Raises BadBlob, also when a rule is
    decoded.
    """

    def __init__(self, family: str, name: str, blob: bytes, hooks: Mapping[int, int], underflows: Mapping[int, int]) -> None:
        self.family, self.name, self.hooks, self.underflows = family, name, hooks, underflows
        self._blob = blob
        try:
            self._offsets, self._targets = _offsets(blob, *_SHAPES[family])
            self.starts, self._spans = self._name_chains()
            self._places = {at: place for place, at in enumerate(self._offsets)}
            self._firsts = [span.start for span in self._spans.values()]
            for hook in hooks:
                self.policy(hook)
        except (struct.error, KeyError, IndexError) as e:
            raise BadBlob(f"{name}: {e!r}") from e
        self.entries: Mapping[int, Entry] = Lazy(self._places, self._decode)
        self.chains: Mapping[str, list[Entry]] = Lazy(self._spans, self._rules)

    def _name_chains(self) -> tuple[dict[int, str], dict[str, range]]:
        """Chain by the offset of its first rule; and of each chain where its rules stand among all entries."""
        blob, offsets = self._blob, self._offsets
        starts: dict[int, str] = {}
        heads: list[tuple[int, str]] = []
        base = {at: HOOKS[hook] for hook, at in self.hooks.items()}
        bounds = [place for place, at in enumerate(self._targets) if blob[at + 2 : at + 8] == _ERROR]
        if not bounds or bounds[-1] != len(offsets) - 1:
            raise BadBlob(f"{self.name} has no end")
        for place in bounds[:-1]:
            data = self._targets[place] + _EXT.size
            heads.append((place + 1, blob[data : data + _CHAIN].split(b"\0")[0].decode()))
        heads += [(bisect_left(offsets, at), chain) for at, chain in base.items()]
        heads.sort()
        ends = sorted({*bounds, *(place for place, _ in heads if offsets[place] in base)})
        spans = {}
        for place, chain in heads:
            starts[offsets[place]] = chain
            spans[chain] = range(place, ends[bisect_right(ends, place)] - 1)
        return starts, spans

    def _rules(self, chain: str) -> list[Entry]:
        return [self.entries[self._offsets[place]] for place in self._spans[chain]]

    def _decode(self, at: int) -> Entry:
        """The rule at an offset, with its place; the ERROR targets between chains have none."""
        blob, size, place = self._blob, _SHAPES[self.family][0], self._places[at]
        matches, position, behind = [], at + size, self._targets[place]
        try:
            header, goto = (_header4 if self.family == "ip" else _header6)(blob, at)
            while position < behind:
                match, length = _ext(blob, position)
                matches.append(match)
                position += length
            target, _ = _ext(blob, behind)
        except struct.error as e:
            raise BadBlob(f"{self.name}: {e!r}") from e
        after = self._offsets[place + 1] if place + 1 < len(self._offsets) else len(blob)
        chain, number = self._place_of(place)
        return Entry(at, after, header, tuple(matches), target, goto, chain, number)

    def _place_of(self, place: int) -> tuple[str, int]:
        above = bisect_right(self._firsts, place) - 1
        if above < 0:
            return "", 0
        first = self._firsts[above]
        chain = self.starts[self._offsets[first]]
        span = self._spans[chain]
        return (chain if place <= span.stop else ""), (place - first + 1 if place in span else 0)

    def targets(self, chain: str) -> list[tuple[int, str]]:
        """Offset and target_name() of a chain's rules, without decoding them."""
        return [(self._offsets[place], self._target_at(place)) for place in self._spans[chain]]

    def _target_at(self, place: int) -> str:
        at = self._targets[place]
        name = self._blob[at + 2 : at + 31].split(b"\0", 1)[0]
        if name:
            return name.decode()
        (verdict,) = struct.unpack_from("<i", self._blob, at + _EXT.size)
        if verdict < 0:
            return _VERDICTS.get(verdict, str(verdict))
        after = self._offsets[place + 1] if place + 1 < len(self._offsets) else len(self._blob)
        return "" if verdict == after else self.starts.get(verdict, "")

    def target_name(self, e: Entry) -> str:
        """As `iptables -L` shows it: the chain jumped to, the target, the verdict, "" when the rule only counts."""
        return self._target_at(self._places[e.at])

    def policy(self, hook: int) -> str:
        return self._target_at(self._places[self.underflows[hook]])

    def is_same(self, blob: bytes) -> bool:
        """Whether another copy holds the same rules: all but their counters is equal."""
        if len(blob) != len(self._blob):
            return False
        counters = np.array(self._offsets)[:, None] + np.arange(_SHAPES[self.family][0] - _COUNTERS, _SHAPES[self.family][0])
        ours, theirs = (np.frombuffer(b, np.uint8).copy() for b in (self._blob, blob))
        ours[counters] = theirs[counters] = 0
        return bool((ours == theirs).all())


def _offsets(blob: bytes, size: int, where: int) -> tuple[list[int], list[int]]:
    """Where each entry begins, and its target. size: of an entry's head; where: in it its two offsets are."""
    offsets, targets = [], []
    at, end, unpack = 0, len(blob), struct.Struct("<HH").unpack_from
    while at < end:
        target, step = unpack(blob, at + where)
        if target < size or step < target + _EXT.size or at + step > end:
            raise BadBlob(f"an entry at {at} ends before it begins")
        offsets.append(at)
        targets.append(at + target)
        at += step
    return offsets, targets


def _ext(blob: bytes, at: int) -> tuple[Ext, int]:
    length, name, revision = _EXT.unpack_from(blob, at)
    if length < _EXT.size:
        raise BadBlob(f"a match or target at {at} has no length")
    return Ext(name.split(b"\0")[0].decode(), revision, at + _EXT.size, blob[at + _EXT.size : at + length]), length


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


def _header4(blob: bytes, at: int) -> tuple[Header, bool]:
    src, dst, smsk, dmsk = (_number(blob[at + i : at + i + 4]) for i in range(0, 16, 4))
    faces = [_number(blob[at + i : at + i + 16]) for i in range(16, 80, 16)]
    protocol, flags, inverted = struct.unpack_from("<HBB", blob, at + 80)
    header = Header(
        src, smsk, dst, dmsk, faces[0], faces[2], faces[1], faces[3], protocol, not protocol, bool(flags & 1), inverted
    )
    return header, bool(flags & 2)


def _header6(blob: bytes, at: int) -> tuple[Header, bool]:
    src, dst, smsk, dmsk = (_number(blob[at + i : at + i + 16]) for i in range(0, 64, 16))
    faces = [_number(blob[at + i : at + i + 16]) for i in range(64, 128, 16)]
    protocol, _tos, flags, inverted = struct.unpack_from("<HBBB", blob, at + 128)
    header = Header(src, smsk, dst, dmsk, faces[0], faces[2], faces[1], faces[3], protocol, not flags & 1, False, inverted)
    return header, bool(flags & 4)
