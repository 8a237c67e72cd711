"""The rules of one legacy table as the kernel has them: the blob that getsockopt(IPT_SO_GET_ENTRIES) copies out.

A rule is an entry: address part, matches, one target. Its byte offset is what the kernel side names it by, and what jumps
lead to. A chain begins at its hook's entry, or behind an ERROR target that holds its name, and ends with a rule of its own:
the policy, or the return. Structures: include/uapi/linux/netfilter{/x_tables,_ipv4/ip_tables,_ipv6/ip6_tables}.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

HOOKS = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
RETURN = -5
"""Verdict of RETURN in a standard target; others are -1 - NF_*, and from 0 on the offset jumped to."""
_VERDICTS = {-1: "DROP", -2: "ACCEPT", -4: "QUEUE", RETURN: "RETURN"}
_EXT = struct.Struct("<H29sB")
_SHAPES = {"ip": (112, 88), "ip6": (168, 140)}
"""Size of an entry's head, and where in it the offsets of target and next entry are."""
_COUNTERS = 16


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
    chain: str = ""
    number: int = 0

    @property
    def verdict(self) -> int | None:
        """Of a standard target, else None."""
        return struct.unpack_from("<i", self.target.data)[0] if self.target.name == "" else None

    @property
    def comment(self) -> str:
        found = next((m.data for m in self.matches if m.name == "comment"), b"")
        return found.split(b"\0")[0].decode(errors="replace")


@dataclass
class Table:
    """A decoded blob. starts: first rule by chain. hooks: base chain by hook number; policies: its last rule's verdict."""

    family: str
    name: str
    entries: dict[int, Entry]
    hooks: dict[int, int]
    underflows: dict[int, int]
    chains: dict[str, list[Entry]] = field(default_factory=dict)
    starts: dict[int, str] = field(default_factory=dict)

    def target_name(self, e: Entry) -> str:
        """As `iptables -L` shows it: the chain jumped to, the target, the verdict, "" when the rule only counts."""
        verdict = e.verdict
        if verdict is None:
            return e.target.name
        if verdict < 0:
            return _VERDICTS.get(verdict, str(verdict))
        return "" if verdict == e.next else self.starts.get(verdict, "")

    def policy(self, hook: int) -> str:
        return self.target_name(self.entries[self.underflows[hook]])


def decode(family: str, name: str, blob: bytes, hooks: dict[int, int], underflows: dict[int, int]) -> Table:
    """The table whose rules are in blob. family: "ip" or "ip6"; hooks, underflows: offsets by hook number.

    Raises BadBlob.
    """
    try:
        entries = {e.at: e for e in _entries(family, blob)}
        table = Table(family, name, entries, hooks, underflows)
        _name(table)
    except (struct.error, KeyError, IndexError) as e:
        raise BadBlob(f"{name}: {e!r}") from e
    return table


def _entries(family: str, blob: bytes) -> Iterator[Entry]:
    at, (size, offsets) = 0, _SHAPES[family]
    while at < len(blob):
        target_offset, next_offset = struct.unpack_from("<HH", blob, at + offsets)
        if target_offset < size or next_offset <= target_offset or at + next_offset > len(blob):
            raise BadBlob(f"an entry at {at} ends before it begins")
        header, goto = (_header4 if family == "ip" else _header6)(blob, at)
        matches, place = [], at + size
        while place < at + target_offset:
            match, length = _ext(blob, place)
            matches.append(match)
            place += length
        target, _ = _ext(blob, at + target_offset)
        yield Entry(at, at + next_offset, header, tuple(matches), target, goto)
        at += next_offset


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


def _name(table: Table) -> None:
    """Gives each rule its chain and number."""
    base = {at: HOOKS[hook] for hook, at in table.hooks.items()}
    chain, number, rules = "", 0, list(table.entries.values())
    for index, e in enumerate(rules):
        if e.target.name == "ERROR":
            # The last of all has the name "ERROR" and no rules.
            chain = e.target.data.split(b"\0")[0].decode() if index + 1 < len(rules) else ""
            if chain:
                table.chains[chain], table.starts[e.next], number = [], chain, 0
            continue
        if e.at in base:
            chain, number = base[e.at], 0
            table.chains[chain], table.starts[e.at] = [], chain
        behind = rules[index + 1]
        last = behind.target.name == "ERROR" or behind.at in base
        e.chain = chain
        if not last:
            number += 1
            e.number = number
            table.chains[chain].append(e)


def without_counters(family: str, blob: bytes) -> bytes:
    """The blob with all counters zero, to see whether two copies hold the same rules."""
    out, at, (size, offsets) = bytearray(blob), 0, _SHAPES[family]
    while at < len(out):
        out[at + size - _COUNTERS : at + size] = bytes(_COUNTERS)
        (step,) = struct.unpack_from("<H", out, at + offsets + 2)
        if not step:
            raise BadBlob(f"an entry at {at} has no length")
        at += step
    return bytes(out)
