# SPDX-License-Identifier: Apache-2.0
"""A counter with a limited number of keys."""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

from tracer.analysis.stats import MOST

K = TypeVar("K")


class KeyCounter(Generic[K]):
    """Counts at most MOST different keys. rest: the count of all further keys together."""

    def __init__(self) -> None:
        self.of: Counter[K] = Counter()
        self.rest = 0

    def add(self, key: K, count: int = 1) -> None:
        if key in self.of or len(self.of) < MOST:
            self.of[key] += count
        else:
            self.rest += count

    def most(self, count: int) -> list[tuple[K, int]]:
        return self.of.most_common(count)
