# SPDX-License-Identifier: Apache-2.0
"""Periods in which nodes lost packets: what another node saw then may belong to a packet that is missing here."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from tracer.util.lru_dict import LruDict

PERIODS_KEPT = 256
"""Most periods of one node. Beyond that the two with the shortest time between them become one."""
NODES_KEPT = 4096
"""Most nodes of which periods are kept."""


class LossPeriods:
    """The periods of all nodes. Times are those of the reference clock, ns."""

    def __init__(self) -> None:
        self._periods: LruDict[str, list[tuple[int, int]]] = LruDict(NODES_KEPT, "nodes with losses")

    def __bool__(self) -> bool:
        return bool(self._periods)

    def add(self, node: str, since: int, until: int) -> None:
        """A node lost packets between two times."""
        periods = self._periods.get(node)
        if periods is None:
            periods = self._periods[node] = []
        at = bisect_right(periods, (since, until))
        if at and periods[at - 1][1] >= since:
            at -= 1
            since, until = periods[at][0], max(until, periods[at][1])
            del periods[at]
        while at < len(periods) and periods[at][0] <= until:
            until = max(until, periods[at][1])
            del periods[at]
        periods.insert(at, (since, until))
        if len(periods) > PERIODS_KEPT:
            gaps = [(after[0] - before[1], n) for n, (before, after) in enumerate(pairwise(periods))]
            _, n = min(gaps)
            periods[n : n + 2] = [(periods[n][0], periods[n + 1][1])]

    def concerns(self, node: str, since: int, until: int) -> bool:
        """Whether a node may have lost a packet between two times."""
        periods = self._periods.get(node)
        if not periods:
            return False
        at = bisect_right(periods, (until, 1 << 63)) - 1
        return at >= 0 and periods[at][1] >= since

    def forget(self, until: int) -> None:
        """Forgets periods that ended before a time."""
        for node in self._periods:
            kept = [period for period in self._periods[node] if period[1] >= until]
            if kept:
                self._periods[node] = kept
            else:
                del self._periods[node]
