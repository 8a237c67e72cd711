# SPDX-License-Identifier: Apache-2.0
"""Bounded dictionaries: the least recently used entry is evicted first; evictions are counted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LruDict(MutableMapping[K, V]):
    """An LRU dictionary with at most `most` entries. evicted: number of evicted entries."""

    def __init__(self, most: int) -> None:
        self._most, self.evicted = most, 0
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __getitem__(self, key: K) -> V:
        self._entries.move_to_end(key)
        return self._entries[key]

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[key] = value
        self._entries.move_to_end(key)
        while len(self._entries) > self._most:
            self._entries.popitem(last=False)
            self.evicted += 1

    def __delitem__(self, key: K) -> None:
        del self._entries[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)


class LruCounter(LruDict[K, int]):
    """Counts by key; 0 for a missing key."""

    def __getitem__(self, key: K) -> int:
        return super().__getitem__(key) if key in self else 0
