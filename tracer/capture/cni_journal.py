# SPDX-License-Identifier: Apache-2.0
"""Records and replays the readings of the CNI result cache.

The cache is read again during a lookup that finds nothing. So a reading is valid from that lookup of its batch on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tracer.kube.cni_cache import CniCache, Sandbox

OnRead = Callable[[int, list[Sandbox]], None]
"""Takes the number of lookups in this batch, and the sandboxes that were read."""


class RecordedCniCache(CniCache):
    """The live cache. on_read: called with each reading that differs from the previous one."""

    def __init__(self, on_read: OnRead, directories: tuple[Path, ...] | None = None) -> None:
        self._on_read, self._last = on_read, list[Sandbox]()
        super().__init__(directories)

    def begin_batch(self) -> None:
        """Call at the beginning of each batch."""
        self.lookups = 0

    def refresh(self) -> None:
        """Reads the cache without a lookup, unless it was read shortly before."""
        self.lookups = 0
        self._find(("id", ""))

    def _scan(self) -> None:
        super()._scan()
        found = [s for s in self._files.values() if s]
        if found != self._last:
            self._last = found
            self._on_read(self.lookups, found)


class ReplayedCniCache(CniCache):
    """Gives the recorded sandboxes."""

    def __init__(self) -> None:
        self._pending = list[tuple[int, list[Sandbox]]]()
        super().__init__(())

    def begin_batch(self, readings: Iterable[tuple[int, list[Sandbox]]]) -> None:
        """Begins a batch with its readings: (number of lookups, sandboxes). Unused ones of the previous batch apply now."""
        for _, found in self._pending:
            self._apply(found)
        self._pending, self.lookups = list(readings), 0

    def skip(self, lookups: int) -> bool:
        after = self.lookups + lookups
        if self._pending and self._pending[0][0] <= after:
            return False
        self.lookups = after
        return True

    def _find(self, key: tuple[str, str]) -> tuple[Sandbox, ...]:
        self.lookups += 1
        while self._pending and self._pending[0][0] <= self.lookups:
            self._apply(self._pending.pop(0)[1])
        return self._by.all(key)

    def _apply(self, found: list[Sandbox]) -> None:
        self._by = self._index(found)
        self.version += 1
