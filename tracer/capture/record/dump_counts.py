# SPDX-License-Identifier: Apache-2.0
"""Counts the captures around findings. One thread asks for them, another one writes them, a third one serves the counts."""

from __future__ import annotations

import threading
from collections import Counter
from enum import StrEnum


class DumpResult(StrEnum):
    """What became of the capture around a finding."""

    WRITTEN = "written"
    JOINED = "joined"
    """In the capture of another finding, which was not written yet."""
    LIMITED = "limited"
    """Not written: this kind of finding had one shortly before."""
    FAILED = "failed"


class DumpCounts:
    """Counts by finding and result. The names of findings come from the code, so their number is small."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, finding: str, result: DumpResult) -> None:
        with self._lock:
            self._counts[finding, result.value] += 1

    def read(self) -> dict[tuple[str, str], int]:
        """The counts so far."""
        with self._lock:
            return dict(self._counts)
