# SPDX-License-Identifier: Apache-2.0
"""A run's view of nftables' rules: the snapshots of the watching thread, as they were when the batch began.

Within a batch nothing changes, so the output for a packet does not depend on the speed of the thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from tracer.rules.nftables.namespace_snapshots import NamespaceTable, SnapshotHistory
from tracer.rules.nftables.snapshot import Snapshot
from tracer.rules.nftables.watcher import RulesetUpdate


class UpdateSource(Protocol):
    """Reads rules."""

    def changes(self) -> list[RulesetUpdate]:
        """Updates since the last call."""

    def is_coming(self, space: int, generation: int) -> bool:
        """Whether the generation may still be read; if so, requests it."""


class _CachedNamespace:
    """The snapshots of one namespace. `stays`: whether it is the run's own namespace, which is the first one seen."""

    def __init__(self, stays: bool) -> None:
        self.snapshots = SnapshotHistory()
        self.seen, self.gone, self.stays = 0, False, stays


class SnapshotCache:
    """Snapshots by namespace (netns.identity) and generation.

    Attributes:
        changed: Called with the time (ns, CLOCK_MONOTONIC) when a namespace has rules of another generation.
        updates: Number of updates so far.
    """

    def __init__(self, watch: UpdateSource) -> None:
        self._watch, self.updates = watch, 0
        self.changed: Callable[[int], None] | None = None
        self._namespaces: NamespaceTable[_CachedNamespace] = NamespaceTable(
            lambda _: _CachedNamespace(stays=not len(self._namespaces))
        )

    def refresh(self) -> None:
        """Takes the updates since the last call."""
        for change in self._watch.changes():
            self.updates += 1
            known = self._namespaces[change.inode]
            if known.seen and known.seen != change.seen and self.changed:
                self.changed(time.monotonic_ns())
            known.seen, known.gone = change.seen, change.gone
            if change.snapshot:
                known.snapshots.add(change.snapshot)
                self._namespaces.limit_objects(change.inode)

    def find(self, space: int, generation: int) -> Snapshot | None:
        """The snapshot of that generation; None = none (yet)."""
        return self._namespaces[space].snapshots.get(generation)

    def near(self, space: int) -> list[Snapshot]:
        """All snapshots of a namespace, the newest first."""
        return list(self._namespaces[space].snapshots.values())[::-1]

    def is_coming(self, space: int, generation: int) -> bool:
        """Whether that generation is missing but may still be read; if so, requests it."""
        known = self._namespaces[space]
        if known.gone or generation in known.snapshots or generation < known.seen:
            return False
        self._watch.is_coming(space, generation)
        return True
