# SPDX-License-Identifier: Apache-2.0
"""Bounded storage of nftables snapshots by network namespace and generation, used by the reading thread and by a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from tracer.rules.nftables.snapshot import Snapshot

NAMESPACES_KEPT = 512
"""Most namespaces kept, removed ones included."""
GENERATIONS_KEPT = 16
"""Most generations kept per namespace."""


class SnapshotHistory(dict[int, Snapshot]):
    """Snapshots of one namespace by generation, in order of arrival. `evicted`: number of snapshots evicted."""

    evicted = 0

    def add(self, snapshot: Snapshot) -> None:
        """Adds a snapshot, and evicts the oldest ones beyond the bound."""
        self[snapshot.number] = snapshot
        while len(self) > GENERATIONS_KEPT:
            del self[next(iter(self))]
            self.evicted += 1


class NamespaceEntry(Protocol):
    """An entry of a NamespaceTable. `gone`: nothing can be read there any more. `stays`: it is never evicted."""

    gone: bool

    @property
    def stays(self) -> bool: ...


S = TypeVar("S", bound=NamespaceEntry)


class NamespaceTable(Generic[S]):
    """Namespaces by netns.identity.

    Args:
        make: Makes a missing entry.

    Attributes:
        evicted: Number of entries evicted.
    """

    def __init__(self, make: Callable[[int], S]) -> None:
        self._make, self.evicted = make, 0
        self._entries: dict[int, S] = {}

    def __getitem__(self, space: int) -> S:
        """The entry of a namespace. A missing one is made, and may evict another one."""
        if space not in self._entries:
            if len(self._entries) >= NAMESPACES_KEPT:
                self._evict()
            self._entries[space] = self._make(space)
        return self._entries[space]

    def _evict(self) -> None:
        """Evicts a namespace that is gone, else the one that was added first."""
        evictable = [key for key, known in self._entries.items() if not known.stays]
        if evictable:
            del self._entries[next((key for key in evictable if self._entries[key].gone), evictable[0])]
            self.evicted += 1

    def __contains__(self, space: object) -> bool:
        return space in self._entries

    def __iter__(self) -> Iterator[S]:
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)
