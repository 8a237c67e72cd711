# SPDX-License-Identifier: Apache-2.0
"""What a run knows of nftables' rules: the watching thread's readings, as they were when the turn began.

Between two turns nothing is learned, so what a packet is told does not depend on how fast the thread happens to be.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from tracer.rules.nftables.namespace_snapshots import NamespaceTable, SnapshotHistory
from tracer.rules.nftables.snapshot import Snapshot
from tracer.rules.nftables.watcher import RulesetUpdate


class UpdateSource(Protocol):
    """Who reads. changes: what has become known since the last call. coming: has a generation tried."""

    def changes(self) -> list[RulesetUpdate]: ...
    def is_coming(self, space: int, generation: int) -> bool: ...


class _CachedNamespace:
    """Of one namespace. stays: the run's own, which is the first that is heard of."""

    def __init__(self, stays: bool) -> None:
        self.snapshots = SnapshotHistory()
        self.seen, self.gone, self.stays = 0, False, stays


class SnapshotCache:
    """Snapshots by namespace (netns.identity) and generation. changed: called when a namespace's rules are seen
    to be of another generation, with the time (ns, CLOCK_MONOTONIC)."""

    def __init__(self, watch: UpdateSource) -> None:
        self._watch = watch
        self.changed: Callable[[int], None] | None = None
        self._namespaces: NamespaceTable[_CachedNamespace] = NamespaceTable(
            lambda _: _CachedNamespace(stays=not len(self._namespaces))
        )

    def refresh(self) -> None:
        """Takes what was read since the last call."""
        for change in self._watch.changes():
            known = self._namespaces[change.inode]
            if known.seen and known.seen != change.seen and self.changed:
                self.changed(time.monotonic_ns())
            known.seen, known.gone = change.seen, change.gone
            if change.snapshot:
                known.snapshots.add(change.snapshot)

    def find(self, space: int, generation: int) -> Snapshot | None:
        """The snapshot of that generation; None when there is none (yet)."""
        return self._namespaces[space].snapshots.get(generation)

    def near(self, space: int) -> list[Snapshot]:
        """All snapshots of a namespace, the newest first."""
        return list(self._namespaces[space].snapshots.values())[::-1]

    def is_coming(self, space: int, generation: int) -> bool:
        """Whether that generation is not there yet, but may still be read; if so, it will be tried."""
        known = self._namespaces[space]
        if known.gone or generation in known.snapshots or generation < known.seen:
            return False
        self._watch.is_coming(space, generation)
        return True
