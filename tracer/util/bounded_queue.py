# SPDX-License-Identifier: Apache-2.0
"""Bounded queues: the oldest entry is evicted first; evictions are counted."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TypeVar

from tracer.util.evictions import evictions

V = TypeVar("V")


class BoundedQueue(deque[V]):
    """A queue with at most `most` entries. One thread may append while another one reads.

    Args:
        most: Largest number of entries.
        name: What the entries are, a plural noun phrase; evictions are counted under it, and docs/bounds.md lists it.

    Attributes:
        evicted: Number of evicted entries.
    """

    def __init__(self, most: int, name: str) -> None:
        super().__init__(maxlen=most)
        self.most, self.name, self.evicted = most, name, 0

    def append(self, entry: V) -> None:
        if len(self) == self.most:
            self.evicted += 1
            evictions.add(self.name)
        super().append(entry)

    def extend(self, entries: Iterable[V]) -> None:
        for entry in entries:
            self.append(entry)

    def read(self) -> list[V]:
        """Removes and returns the entries, oldest first."""
        return [self.popleft() for _ in range(len(self))]
