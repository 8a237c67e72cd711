# SPDX-License-Identifier: Apache-2.0
"""Counting things of which there may be too many."""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

from tracer.analysis.stats import MOST

K = TypeVar("K")


class KeyCounter(Generic[K]):
    """A counter of at most MOST different things. rest: how many more were counted, of others."""

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
