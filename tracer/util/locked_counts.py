# SPDX-License-Identifier: Apache-2.0
"""Numbers that several threads count and read."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class LockedCounts(Generic[K]):
    """Counts by key. The keys come from the code, so their number is small.

    Args:
        keys: Keys that are there from the beginning.
    """

    def __init__(self, keys: Iterable[K] = ()) -> None:
        self._numbers: Counter[K] = Counter(dict.fromkeys(keys, 0))
        self._lock = threading.Lock()

    def add(self, key: K, count: int = 1) -> None:
        with self._lock:
            self._numbers[key] += count

    def read(self) -> dict[K, int]:
        """The numbers so far."""
        with self._lock:
            return dict(self._numbers)
