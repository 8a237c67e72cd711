# SPDX-License-Identifier: Apache-2.0
"""One rule of a legacy table in the blob: address part, matches, one target.

Structures: struct ipt_entry, ip6t_entry, xt_entry_match and xt_entry_target in include/uapi/linux/netfilter*.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tracer.util.octets import c_text

EXTENSION = struct.Struct("<H29sB")
"""Head of a match or a target: its length, name, revision."""
INV_IN, INV_OUT, INV_SRC, INV_DST, INV_FRAGMENT, INV_PROTOCOL = 1, 2, 8, 16, 32, 64
"""Inverted tests of a rule's header: IPT_INV_* and IP6T_INV_*."""
HEADS = {"ip": (112, 88), "ip6": (168, 140)}
"""Size of a rule's address part, and position in it of the offsets of the target and the next rule, bytes."""


class MalformedTable(Exception):
    """The blob does not have the expected layout."""


@dataclass(frozen=True)
class Extension:
    """A match or target of a rule.

    Attributes:
        name: Its name.
        revision: Its revision.
        at: Offset of its data in the blob, by which the kernel side names it.
        data: Its data.
    """

    name: str
    revision: int
    at: int
    data: bytes


@dataclass(frozen=True)
class TableHeader:
    """The header fields that a rule tests. Addresses are numbers; interface names are 16 bytes, as a number, with a mask.

    Attributes:
        any_protocol: Whether no protocol is tested.
        fragment: Whether only fragments other than the first match (IPv4).
        inverted: Inverted tests: INV_*, or-ed.
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
    def is_empty(self) -> bool:
        """Whether it tests nothing."""
        masks = self.src_mask | self.dst_mask | self.in_mask | self.out_mask
        return not (masks or self.inverted or self.fragment) and self.any_protocol


@dataclass
class Entry:
    """One rule.

    Attributes:
        at: Its offset.
        next: Offset of the next rule.
        header: The header fields that it tests.
        matches: Its matches.
        target: Its target.
        goto: Whether its jump is a goto, which does not return.
        chain: Its chain.
        number: Its number in the chain, from 1; 0 = the chain's own last entry (policy or return).
    """

    at: int
    next: int
    header: TableHeader
    matches: tuple[Extension, ...]
    target: Extension
    goto: bool
    chain: str
    number: int

    @property
    def verdict(self) -> int | None:
        """Verdict of a standard target; None for any other target."""
        return struct.unpack_from("<i", self.target.data)[0] if self.target.name == "" else None

    @property
    def comment(self) -> str:
        """Text of match comment, "" = none."""
        found = next((m.data for m in self.matches if m.name == "comment"), b"")
        return c_text(found)


def decode(family: str, blob: bytearray, at: int, target_at: int) -> tuple[TableHeader, bool, tuple[Extension, ...], Extension]:
    """Decodes a rule.

    Args:
        family: "ip" or "ip6".
        blob: The table's entries.
        at: Offset of the rule.
        target_at: Offset of its target.

    Returns:
        (address part, whether its jump is a goto, matches, target).

    Raises:
        MalformedTable: A part of it has no valid length.
    """
    matches, position = [], at + HEADS[family][0]
    try:
        header, goto = (_header4 if family == "ip" else _header6)(blob, at)
        while position < target_at:
            match, length = _ext(blob, position)
            matches.append(match)
            position += length
        target, _ = _ext(blob, target_at)
    except struct.error as e:
        raise MalformedTable(f"a rule at {at}: {e}") from e
    return header, goto, tuple(matches), target


def _ext(blob: bytearray, at: int) -> tuple[Extension, int]:
    length, name, revision = EXTENSION.unpack_from(blob, at)
    if length < EXTENSION.size:
        raise MalformedTable(f"a match or target at {at} has no length")
    data = bytes(blob[at + EXTENSION.size : at + length])
    return Extension(c_text(name), revision, at + EXTENSION.size, data), length


def _number(raw: bytes | bytearray) -> int:
    return int.from_bytes(raw, "big")


def _header4(blob: bytearray, at: int) -> tuple[TableHeader, bool]:
    src, dst, smsk, dmsk = (_number(blob[at + i : at + i + 4]) for i in range(0, 16, 4))
    faces = [_number(blob[at + i : at + i + 16]) for i in range(16, 80, 16)]
    protocol, flags, inverted = struct.unpack_from("<HBB", blob, at + 80)
    header = TableHeader(
        src, smsk, dst, dmsk, faces[0], faces[2], faces[1], faces[3], protocol, not protocol, bool(flags & 1), inverted
    )
    return header, bool(flags & 2)


def _header6(blob: bytearray, at: int) -> tuple[TableHeader, bool]:
    src, dst, smsk, dmsk = (_number(blob[at + i : at + i + 16]) for i in range(0, 64, 16))
    faces = [_number(blob[at + i : at + i + 16]) for i in range(64, 128, 16)]
    protocol, _tos, flags, inverted = struct.unpack_from("<HBBB", blob, at + 128)
    header = TableHeader(src, smsk, dst, dmsk, faces[0], faces[2], faces[1], faces[3], protocol, not flags & 1, False, inverted)
    return header, bool(flags & 4)
