# SPDX-License-Identifier: Apache-2.0
"""A counter with a limited number of keys."""

from __future__ import annotations

from collections import Counter
from typing import Any, Generic, TypeVar

from tracer.analysis.stats import MOST
from tracer.util.evictions import evictions

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
            evictions.add("keys of statistics")

    def most(self, count: int) -> list[tuple[K, int]]:
        return self.of.most_common(count)


def titled(title: str, *counters: KeyCounter[Any]) -> str:
    """A table's title, with the number of what was counted only together: no row has it."""
    rest = sum(counter.rest for counter in counters)
    return f"{title}; {rest:,} more, of more than {MOST:,} kinds, are not in the table" if rest else title
