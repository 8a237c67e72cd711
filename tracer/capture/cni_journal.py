# SPDX-License-Identifier: Apache-2.0
"""The CNI result cache, recorded as often as it is read anew, and replayed.

It is read in the middle of a question, when nobody is found. So a reading counts from that question of its turn on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from tracer.kube.cni_cache import CniCache, Sandbox

Keep = Callable[[int, list[Sandbox]], None]
"""Takes how many questions were asked in this turn, and what was read."""


class RecordedCniCache(CniCache):
    """The live cache. keep: takes each reading that differs from the one before."""

    def __init__(self, keep: Keep, directories: tuple[Path, ...] | None = None) -> None:
        self._keep, self._asked, self._said = keep, 0, list[Sandbox]()
        super().__init__(directories)

    def turn(self) -> None:
        """A turn begins."""
        self._asked = 0

    def look(self) -> None:
        """Reads the cache although nobody asks, unless that was done a moment ago."""
        self._asked = 0
        self._find(("id", ""))

    def _find(self, key: tuple[str, str]) -> tuple[Sandbox, ...]:
        self._asked += 1
        return super()._find(key)

    def _look(self) -> None:
        super()._look()
        found = [s for s in self._files.values() if s]
        if found != self._said:
            self._said = found
            self._keep(self._asked, found)


class ReplayedCniCache(CniCache):
    """What was read then."""

    def __init__(self) -> None:
        self._asked, self._coming = 0, list[tuple[int, list[Sandbox]]]()
        super().__init__(())

    def turn(self, readings: Iterable[tuple[int, list[Sandbox]]]) -> None:
        """A turn begins, in which these are read. What was not reached in the one before counts from now on."""
        for _, found in self._coming:
            self._put(found)
        self._coming, self._asked = list(readings), 0

    def _find(self, key: tuple[str, str]) -> tuple[Sandbox, ...]:
        self._asked += 1
        while self._coming and self._coming[0][0] <= self._asked:
            self._put(self._coming.pop(0)[1])
        return self._by.all(key)

    def _put(self, found: list[Sandbox]) -> None:
        self._by = self._index(found)
