# SPDX-License-Identifier: Apache-2.0
"""The rules of one legacy table as the kernel has them: the blob that getsockopt(IPT_SO_GET_ENTRIES) copies out.

A rule is an entry: address part, matches, one target. The kernel side and jumps name it by its byte offset. A chain begins at
the entry of its hook, or after an ERROR target that holds its name. It ends with an entry of its own: the policy, or the
return. Layout of a rule: tracer/rules/iptables/entry.py.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping

import numpy as np

from tracer.model.netfilter import IP_HOOKS
from tracer.rules.iptables import entry
from tracer.rules.iptables.entry import EXTENSION, HEADS, Entry, MalformedTable
from tracer.rules.iptables.table import Table
from tracer.util.octets import c_text, decoded

_COUNTERS = 16
_NAME_AT = 2
"""Position of the name in the head of a match or target."""
_ERROR, _CHAIN = b"ERROR\0", 30
"""Name of the target that stands before a chain, and the greatest length of a chain's name, bytes."""


class BlobTable(Table):
    """A table in a blob. The offsets of rules and chains are read once; a rule is decoded on demand. Counters are not kept.

    Args:
        family: "ip" or "ip6".
        name: The table.
        blob: Its entries.
        hooks: Offset of each base chain's first rule, by hook number.
        underflows: Offset of each base chain's policy, by hook number.

    Raises:
        MalformedTable: The blob is malformed; also raised when a rule is decoded.
    """

    def __init__(
        self, family: str, name: str, blob: bytes | bytearray, hooks: Mapping[int, int], underflows: Mapping[int, int]
    ) -> None:
        self.family, self.name, self.hooks, self.underflows = family, name, hooks, underflows
        self._blob = bytearray(blob) if isinstance(blob, bytes) else blob
        self.octets = len(self._blob)
        self._entries: dict[int, Entry] = {}
        size, where = HEADS[family]
        self._offsets = _offsets(self._blob, where)
        begins = np.array(self._offsets, np.int64)
        halves = np.frombuffer(self._blob, np.uint16)
        targets, lengths = (halves[(begins + where) // 2 + n].astype(np.int64) for n in (0, 1))
        if (targets % 8).any() or (targets < size).any() or (lengths < targets + EXTENSION.size).any():
            raise MalformedTable(f"{name}: an entry ends before it begins")
        self._targets = begins + targets
        self._counters = (begins + size - _COUNTERS) // 8
        self._without_counters(self._blob)
        self.starts, self._spans = self._chains()
        self._firsts = [first for first, _ in self._spans.values()]
        try:
            for hook in hooks:
                self.policy(hook)
        except (KeyError, IndexError) as e:
            raise MalformedTable(f"{name}: {e!r}") from e

    def _chains(self) -> tuple[dict[int, str], dict[str, tuple[int, int]]]:
        """(chain by the offset of its first rule, indexes [first, last) of the rules of each chain)."""
        # A target begins with its size, in two bytes, and its name. The length of everything here is a multiple of 8 bytes.
        names = np.frombuffer(self._blob, np.uint64)[self._targets // 8] >> np.uint64(16)
        bounds = np.flatnonzero(names == int.from_bytes(_ERROR, "little"))
        if not len(bounds) or bounds[-1] != len(self._offsets) - 1:
            raise MalformedTable(f"{self.name} has no end")
        data = np.frombuffer(self._blob, np.uint8)[
            self._targets[bounds[:-1], None] + np.arange(EXTENSION.size, EXTENSION.size + _CHAIN)
        ]
        own = [c_text(name) for name in data.view(f"S{_CHAIN}").ravel().tolist()]
        base = [self._index(at) for at in self.hooks.values()]
        places = np.concatenate([bounds[:-1] + 1, np.array(base, bounds.dtype)])
        unsorted = [*own, *(IP_HOOKS[hook].value for hook in self.hooks)]
        if len(set(unsorted)) < len(unsorted):
            # The kernel does not check the names of chains; a rule of the wrong chain could be shown.
            raise MalformedTable(f"two chains of {self.name} have the same name")
        order = np.argsort(places, kind="stable")
        chains, firsts = [unsorted[n] for n in order.tolist()], places[order]
        ends = np.sort([*bounds, *base])
        lasts = ends[np.searchsorted(ends, firsts, "right")] - 1
        starts = dict(zip(np.array(self._offsets)[firsts].tolist(), chains, strict=True))
        return starts, dict(zip(chains, zip(firsts.tolist(), lasts.tolist(), strict=True), strict=True))

    def _index(self, at: int) -> int:
        """Index of the entry that begins at an offset. Raises KeyError."""
        place = bisect_left(self._offsets, at)
        if place == len(self._offsets) or self._offsets[place] != at:
            raise KeyError(at)
        return place

    @property
    def chains(self) -> Iterable[str]:
        """Names of the chains, in the order of the blob."""
        return self._spans.keys()

    def size(self, chain: str) -> int:
        first, last = self._spans[chain]
        return last - first

    def offsets(self, chain: str) -> list[int]:
        first, last = self._spans[chain]
        return self._offsets[first:last]

    def entry(self, at: int) -> Entry:
        found = self._entries.get(at)
        if found is None:
            try:
                found = self._entries[at] = self._decode(at)
            except KeyError as e:
                raise MalformedTable(f"{self.name}: no rule begins at {at}") from e
        return found

    def _decode(self, at: int) -> Entry:
        """The rule with its chain and number; the ERROR targets between chains have none."""
        place = self._index(at)
        header, goto, matches, target = entry.decode(self.family, self._blob, at, int(self._targets[place]))
        return Entry(at, self._next_offset(place), header, matches, target, goto, *self._chain_of(place))

    def _next_offset(self, place: int) -> int:
        return self._offsets[place + 1] if place + 1 < len(self._offsets) else len(self._blob)

    def _chain_of(self, place: int) -> tuple[str, int]:
        """Chain and number of the entry with this index."""
        above = bisect_right(self._firsts, place) - 1
        if above < 0:
            return "", 0
        first = self._firsts[above]
        chain = self.starts[self._offsets[first]]
        _, last = self._spans[chain]
        return (chain if place <= last else ""), (place - first + 1 if place < last else 0)

    def target_name(self, at: int) -> str:
        place = self._index(at)
        target = int(self._targets[place])
        name = self._blob[target + _NAME_AT : target + EXTENSION.size - 1].split(b"\0", 1)[0]
        if name:
            return decoded(name)
        (verdict,) = struct.unpack_from("<i", self._blob, target + EXTENSION.size)
        return self.verdict_name(verdict, self._next_offset(place))

    def extensions(self) -> set[tuple[str, int]]:
        """Names and revisions of all matches and targets. Raises MalformedTable."""
        octets, halves = np.frombuffer(self._blob, np.uint8), np.frombuffer(self._blob, np.uint16)
        head = np.arange(_NAME_AT, EXTENSION.size)
        size, _ = HEADS[self.family]
        targets, found = self._targets, set[bytes]()
        at = np.array(self._offsets, np.int64) + size
        while len(at):
            is_match = at < targets
            found.update(octets[np.where(is_match, at, targets)[:, None] + head].view(f"V{len(head)}").ravel().tolist())
            at, targets = at[is_match], targets[is_match]
            lengths = halves[at // 2].astype(np.int64)
            if (lengths < EXTENSION.size).any() or (lengths % 8).any() or (at + lengths > targets).any():
                raise MalformedTable(f"{self.name}: a match has no length")
            at = at + lengths
        return {(c_text(raw[:-1]), raw[-1]) for raw in found}

    def __eq__(self, other: object) -> bool:
        """Compares all but the counters."""
        if not isinstance(other, BlobTable):
            return NotImplemented
        ours, theirs = ((t.family, t.name, t._blob, t.hooks, t.underflows) for t in (self, other))
        return ours == theirs

    __hash__ = None  # type: ignore[assignment]

    def is_same(self, blob: bytearray) -> bool:
        """Whether another blob holds the same rules. Sets the counters in `blob` to zero; all the rest must be equal."""
        if len(blob) != len(self._blob):
            return False
        self._without_counters(blob)
        return blob == self._blob

    def _without_counters(self, blob: bytearray) -> None:
        words = np.frombuffer(blob, np.uint64)
        for n in range(_COUNTERS // 8):
            words[self._counters + n] = 0


def _offsets(blob: bytearray, where: int) -> list[int]:
    """Offset of each entry. `where`: position in an entry's head of its two offsets, to its target and to the next entry."""
    offsets, at, end = [], 0, len(blob)
    if end % 8:
        raise MalformedTable("its length is no multiple of 8")
    halves, next_offset = memoryview(blob).cast("H"), where // 2 + 1
    try:
        while at < end:
            offsets.append(at)
            step = halves[at // 2 + next_offset]
            if not step or step % 8:
                raise MalformedTable(f"an entry at {at} has no length")
            at += step
    except IndexError:
        at = -1
    if at != end:
        raise MalformedTable("the last entry ends behind the end")
    return offsets
