# SPDX-License-Identifier: Apache-2.0
"""What became of the Events, as numbers. The thread that sends counts, threads that serve metrics read."""

from __future__ import annotations

import threading
from collections import Counter
from enum import StrEnum


class EventResult(StrEnum):
    """What became of one Event, or of one change of an Event."""

    CREATED = "created"
    UPDATED = "updated"
    SHED = "shed"
    """Not sent: too many findings at once, the API was away for too long, or the run has ended."""
    REFUSED = "refused"
    """Not accepted by the API."""


class EventCounts:
    """The numbers by result; each result is there from the beginning."""

    def __init__(self) -> None:
        self._counts = Counter({result: 0 for result in EventResult})
        self._lock = threading.Lock()

    def add(self, result: EventResult, count: int = 1) -> None:
        """Counts results."""
        with self._lock:
            self._counts[result] += count

    def read(self) -> dict[str, int]:
        """All results so far."""
        with self._lock:
            return {result.value: count for result, count in self._counts.items()}
