# SPDX-License-Identifier: Apache-2.0
"""Bounded storage of nftables snapshots by network namespace and generation, used by the reading thread and by a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from tracer.rules.nftables.snapshot import Snapshot
from tracer.util.evictions import evictions

NAMESPACES_KEPT = 512
"""Most namespaces kept, removed ones included."""
GENERATIONS_KEPT = 16
"""Most generations kept per namespace."""
OBJECTS_KEPT = 600_000
"""Most rules and map elements kept in all snapshots together, beyond those of the newest snapshot that is never evicted. About
200 to 400 bytes each."""


class SnapshotHistory(dict[int, Snapshot]):
    """Snapshots of one namespace by generation, in order of arrival. `evicted`: number of snapshots evicted."""

    evicted = 0

    def add(self, snapshot: Snapshot) -> None:
        """Adds a snapshot, and evicts the oldest ones beyond the bound."""
        self[snapshot.number] = snapshot
        while len(self) > GENERATIONS_KEPT:
            self.evict_oldest()

    def evict_oldest(self) -> None:
        """Evicts the snapshot that arrived first."""
        del self[next(iter(self))]
        self.evicted += 1
        evictions.add("generations of nftables")

    @property
    def objects(self) -> int:
        """Number of rules and map elements in all snapshots."""
        return sum(snapshot.objects for snapshot in self.values())


class NamespaceEntry(Protocol):
    """An entry of a NamespaceTable.

    Attributes:
        gone: Nothing can be read there any more.
        stays: It is never evicted, nor is its newest snapshot.
        snapshots: Its snapshots.
    """

    gone: bool
    snapshots: SnapshotHistory

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
            evictions.add("namespaces with nftables' rules")

    def limit_objects(self, space: int) -> list[int]:
        """Evicts snapshots until at most OBJECTS_KEPT rules and elements are left.

        The largest history loses its older generations first. If that is not enough, the largest namespace loses its newest
        snapshot, too; it can be read again.

        Args:
            space: The namespace that got a snapshot. Its newest one is evicted last.

        Returns:
            Namespaces without a snapshot now.
        """
        sizes = {key: known.snapshots.objects for key, known in self._entries.items()}
        emptied: list[int] = []
        while sum(sizes.values()) > OBJECTS_KEPT:
            histories = [key for key, known in self._entries.items() if len(known.snapshots) > 1]
            newest = [key for key, known in self._entries.items() if known.snapshots and not known.stays]
            if not histories and not newest:
                break
            largest = max(histories or newest, key=lambda key: (bool(histories) or key != space, sizes[key]))
            snapshots = self._entries[largest].snapshots
            snapshots.evict_oldest()
            sizes[largest] = snapshots.objects
            if not snapshots:
                emptied.append(largest)
        return emptied

    def __contains__(self, space: object) -> bool:
        return space in self._entries

    def __iter__(self) -> Iterator[S]:
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)
