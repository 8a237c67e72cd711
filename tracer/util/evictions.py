# SPDX-License-Identifier: Apache-2.0
"""Counts what the bounded containers of this process have evicted, by the name of the container.

A run writes the counts to the log when it ends (`--debug`). An agent serves their totals as a metric.
docs/bounds.md lists the containers, and what an eviction means for the output.
"""

from __future__ import annotations

import threading
from collections import Counter


class EvictionCounter:
    """Evicted entries by container; any thread may add to it."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._totals: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: str, count: int = 1) -> None:
        """Adds evicted entries. name: the container, a plural noun phrase from the code, so their number is small."""
        if count:
            with self._lock:
                self._counts[name] += count
                self._totals[name] += count

    def read(self) -> dict[str, int]:
        """The evicted entries since the previous call, by container."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        return dict(sorted(counts.items()))

    def totals(self) -> dict[str, int]:
        """All entries that this process has evicted, by container."""
        with self._lock:
            return dict(sorted(self._totals.items()))


evictions = EvictionCounter()
"""The evictions of this process."""


def format_evictions(counts: dict[str, int]) -> str:
    """One line for the log: "evicted: 3 closed packets, 12 names of namespaces"; "nothing was evicted"."""
    return "evicted: " + ", ".join(f"{count} {name}" for name, count in counts.items()) if counts else "nothing was evicted"
