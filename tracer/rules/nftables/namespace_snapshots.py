# SPDX-License-Identifier: Apache-2.0
"""What is kept of nftables' rules, by network namespace and generation: as much by the thread that reads them as by a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from tracer.rules.nftables.snapshot import Snapshot

NAMESPACES_KEPT = 512
"""So many namespaces are remembered, those that are gone included."""
KEPT = 16
"""Generations that are kept of a namespace."""


class SnapshotHistory(dict[int, Snapshot]):
    """Of one namespace, by generation, in the order they came. forgotten: so many made room for later ones."""

    forgotten = 0

    def add(self, snapshot: Snapshot) -> None:
        self[snapshot.number] = snapshot
        while len(self) > KEPT:
            del self[next(iter(self))]
            self.forgotten += 1


class NamespaceEntry(Protocol):
    """What is known of a namespace. gone: nothing can be read there any more. stays: it never makes room."""

    gone: bool

    @property
    def stays(self) -> bool: ...


S = TypeVar("S", bound=NamespaceEntry)


class NamespaceTable(Generic[S]):
    """Namespaces by netns.identity. make: makes what is not there. forgotten: so many made room for others."""

    def __init__(self, make: Callable[[int], S]) -> None:
        self._make, self.forgotten = make, 0
        self._of: dict[int, S] = {}

    def __getitem__(self, space: int) -> S:
        """What is known of a namespace. It is made when it is not there, and may make another one go."""
        if space not in self._of:
            if len(self._of) >= NAMESPACES_KEPT:
                self._forget()
            self._of[space] = self._make(space)
        return self._of[space]

    def _forget(self) -> None:
        """One that is gone goes first, else the one that was first asked for."""
        others = [key for key, known in self._of.items() if not known.stays]
        if others:
            del self._of[next((key for key in others if self._of[key].gone), others[0])]
            self.forgotten += 1

    def __contains__(self, space: object) -> bool:
        return space in self._of

    def __iter__(self) -> Iterator[S]:
        return iter(list(self._of.values()))

    def __len__(self) -> int:
        return len(self._of)
