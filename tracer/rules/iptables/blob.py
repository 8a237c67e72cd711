# SPDX-License-Identifier: Apache-2.0
"""The rules of one legacy table as the kernel has them: the blob that getsockopt(IPT_SO_GET_ENTRIES) copies out.

A rule is an entry: address part, matches, one target. Its byte offset is what the kernel side names it by, and what jumps
lead to. A chain begins at its hook's entry, or behind an ERROR target that holds its name, and ends with a rule of its own:
the policy, or the return. What is in a rule: tracer/rules/iptables/entry.py.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping

import numpy as np

from tracer.rules.iptables import entry
from tracer.rules.iptables.entry import EXTENSION, HEADS, Entry, MalformedTable
from tracer.rules.iptables.table import HOOKS, Table
from tracer.util.octets import c_text, decoded

_COUNTERS = 16
_ERROR, _CHAIN = b"ERROR\0", 30
"""Name of the target that stands before a chain, and how long the chain's name may be."""


class BlobTable(Table):
    """A blob, gone through once for where rules and chains begin; a rule is decoded when it is asked for.

    Counters are not kept. Raises MalformedTable, also when a rule is decoded.
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
        """Chain by the offset of its first rule; and of each chain which entries are its rules, as [first, last)."""
        # A target begins with its size, in two bytes, and its name; and everything here is a multiple of 8 bytes long.
        names = np.frombuffer(self._blob, np.uint64)[self._targets // 8] >> np.uint64(16)
        bounds = np.flatnonzero(names == int.from_bytes(_ERROR, "little"))
        if not len(bounds) or bounds[-1] != len(self._offsets) - 1:
            raise MalformedTable(f"{self.name} has no end")
        data = np.frombuffer(self._blob, np.uint8)[
            self._targets[bounds[:-1], None] + np.arange(EXTENSION.size, EXTENSION.size + _CHAIN)
        ]
        own = [c_text(name) for name in data.view(f"S{_CHAIN}").ravel().tolist()]
        base = [self._place(at) for at in self.hooks.values()]
        places = np.concatenate([bounds[:-1] + 1, np.array(base, bounds.dtype)])
        unsorted = [*own, *(HOOKS[hook] for hook in self.hooks)]
        if len(set(unsorted)) < len(unsorted):
            # The kernel does not look at the names of chains; a rule of the wrong one could be told.
            raise MalformedTable(f"two chains of {self.name} have the same name")
        order = np.argsort(places, kind="stable")
        chains, firsts = [unsorted[n] for n in order.tolist()], places[order]
        ends = np.sort([*bounds, *base])
        lasts = ends[np.searchsorted(ends, firsts, "right")] - 1
        starts = dict(zip(np.array(self._offsets)[firsts].tolist(), chains, strict=True))
        return starts, dict(zip(chains, zip(firsts.tolist(), lasts.tolist(), strict=True), strict=True))

    def _place(self, at: int) -> int:
        """Which entry begins at an offset. KeyError."""
        place = bisect_left(self._offsets, at)
        if place == len(self._offsets) or self._offsets[place] != at:
            raise KeyError(at)
        return place

    @property
    def chains(self) -> Iterable[str]:
        """In the order of the blob."""
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
        """With its place; the ERROR targets between chains have none."""
        place = self._place(at)
        header, goto, matches, target = entry.decode(self.family, self._blob, at, int(self._targets[place]))
        return Entry(at, self._after(place), header, matches, target, goto, *self._chain_of(place))

    def _after(self, place: int) -> int:
        return self._offsets[place + 1] if place + 1 < len(self._offsets) else len(self._blob)

    def _chain_of(self, place: int) -> tuple[str, int]:
        """Chain and number of an entry."""
        above = bisect_right(self._firsts, place) - 1
        if above < 0:
            return "", 0
        first = self._firsts[above]
        chain = self.starts[self._offsets[first]]
        _, last = self._spans[chain]
        return (chain if place <= last else ""), (place - first + 1 if place < last else 0)

    def target_name(self, at: int) -> str:
        place = self._place(at)
        target = int(self._targets[place])
        name = self._blob[target + 2 : target + EXTENSION.size - 1].split(b"\0", 1)[0]
        if name:
            return decoded(name)
        (verdict,) = struct.unpack_from("<i", self._blob, target + EXTENSION.size)
        return self.named(verdict, self._after(place))

    def __eq__(self, other: object) -> bool:
        """Counters make no difference."""
        if not isinstance(other, BlobTable):
            return NotImplemented
        ours, theirs = ((t.family, t.name, t._blob, t.hooks, t.underflows) for t in (self, other))
        return ours == theirs

    __hash__ = None  # type: ignore[assignment]

    def is_same(self, blob: bytearray) -> bool:
        """Whether another copy holds the same rules: all but their counters, which are then zero in it, is equal."""
        if len(blob) != len(self._blob):
            return False
        self._without_counters(blob)
        return blob == self._blob

    def _without_counters(self, blob: bytearray) -> None:
        words = np.frombuffer(blob, np.uint64)
        for n in range(_COUNTERS // 8):
            words[self._counters + n] = 0


def _offsets(blob: bytearray, where: int) -> list[int]:
    """Where each entry begins. where: in an entry's head its two offsets are, of the target and of the next one."""
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
