# SPDX-License-Identifier: Apache-2.0
"""Bounded dictionaries: the least recently used entry is evicted first; evictions are counted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import TypeVar, overload

from tracer.util.evictions import evictions

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")


class LruDict(MutableMapping[K, V]):
    """An LRU dictionary with at most `most` entries.

    A look-up counts as a use when at least half of the entries are there: keeping the order costs as much as finding the value,
    and only a full dictionary needs it. So an entry is evicted when at least `most / 2` others were added since it was used, or
    set, for the last time.

    Args:
        most: Largest number of entries.
        name: What the entries are, a plural noun phrase; evictions are counted under it, and docs/bounds.md lists it.
        on_evicted: Called with the key and the value of each evicted entry.
        is_exact: Each look-up counts as a use. For entries that are evicted before the dictionary is full, for their size, or
            that another program has to evict in the same order.

    Attributes:
        evicted: Number of evicted entries.
    """

    def __init__(
        self, most: int, name: str = "", on_evicted: Callable[[K, V], None] | None = None, is_exact: bool = False
    ) -> None:
        self.most, self.name, self.evicted = most, name, 0
        self._ordered_from, self._on_evicted = 0 if is_exact else most // 2, on_evicted
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __getitem__(self, key: K) -> V:
        entries = self._entries
        found = entries[key]
        if len(entries) >= self._ordered_from:
            entries.move_to_end(key)
        return found

    @overload
    def get(self, key: K, default: None = None, /) -> V | None: ...
    @overload
    def get(self, key: K, default: V, /) -> V: ...
    @overload
    def get(self, key: K, default: D, /) -> V | D: ...
    def get(self, key: K, default: D | V | None = None, /) -> D | V | None:
        """The value of a key, which becomes the most recently used one; `default` if there is none."""
        entries = self._entries
        found = entries.get(key)
        if found is None and key not in entries:
            return default
        if len(entries) >= self._ordered_from:
            entries.move_to_end(key)
        return found

    @overload
    def pop(self, key: K, /) -> V: ...
    @overload
    def pop(self, key: K, default: V, /) -> V: ...
    @overload
    def pop(self, key: K, default: D, /) -> V | D: ...
    def pop(self, key: K, *default: D | V) -> D | V:
        """Removes a key and returns its value; `default` if there is none. Without a default a missing key raises KeyError."""
        if key not in self._entries and default:
            return default[0]
        value = self._entries[key]
        del self[key]
        return value

    def __setitem__(self, key: K, value: V) -> None:
        entries = self._entries
        before = len(entries)
        entries[key] = value
        if len(entries) == before:
            entries.move_to_end(key)
        while len(entries) > self.most:
            self.evict()

    def evict(self) -> None:
        """Evicts the least recently used entry, and counts it."""
        key, value = self._entries.popitem(last=False)
        self.evicted += 1
        evictions.add(self.name)
        if self._on_evicted:
            self._on_evicted(key, value)

    def __delitem__(self, key: K) -> None:
        del self._entries[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Removes all entries; they do not count as evicted."""
        self._entries.clear()

    @property
    def oldest(self) -> tuple[K, V] | None:
        """The least recently used entry, which stays the oldest; None = no entry."""
        return next(iter(self._entries.items()), None)


class LruCounter(LruDict[K, int]):
    """Counts by key; 0 for a missing key."""

    def __getitem__(self, key: K) -> int:
        return super().__getitem__(key) if key in self else 0
