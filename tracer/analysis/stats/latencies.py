# SPDX-License-Identifier: Apache-2.0
"""How long packets took from one place to the next.

Times are between probes, so they hold what the probes themselves cost. They are counted in buckets an eighth of a power of two
wide: percentiles are right to a tenth, however many packets there are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from tracer.analysis.result_table import ResultTable
from tracer.analysis.stats import MOST
from tracer.model.hop import DetailHop, Hop, NatHookHop, NatHop
from tracer.model.packet import Packet
from tracer.util.evictions import evictions

SHOWN = 25
STEPS = 8
"""Number of buckets per power of two."""


class Distribution:
    """A histogram of times in ns."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = self.most = 0

    def add(self, ns: int) -> None:
        self._counts[int(math.log2(ns) * STEPS) if ns > 0 else -1] += 1
        self.count, self.most = self.count + 1, max(self.most, ns)

    def at(self, share: float) -> float:
        """Returns the time, in us, that this share of the values does not exceed."""
        wanted, seen = share * self.count, 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return min(2.0 ** ((bucket + 1) / STEPS), self.most) / 1e3 if bucket >= 0 else 0.0
        return self.most / 1e3


class LatencyStatistic:
    def __init__(self) -> None:
        self._between: dict[tuple[str, str], Distribution] = {}
        self._whole: dict[str, Distribution] = {}

    def feed(self, packet: Packet) -> None:
        hops = [h for h in packet.hops if not h.clone and not isinstance(h, (NatHop, NatHookHop, DetailHop))]
        places: list[tuple[str, Hop]] = []
        for hop in hops:
            place = f"{hop.netns} {hop.hook or hop.kind}"
            # The last event of a place is the time of leaving it; the first one, that of reaching it.
            if places and places[-1][0] == place:
                places[-1] = place, hop
                continue
            if places:
                self._add(self._between, (places[-1][0], place), hop.time - places[-1][1].time)
            places.append((place, hop))
        if len(hops) > 1:
            self._add(self._whole, packet.outcome, hops[-1].time - hops[0].time)

    @staticmethod
    def _add(
        into: dict[object, Distribution] | dict[tuple[str, str], Distribution] | dict[str, Distribution], key: object, ns: int
    ) -> None:
        known: dict[object, Distribution] = into  # type: ignore[assignment]
        if key in known or len(known) < MOST:
            known.setdefault(key, Distribution()).add(ns)
        else:
            evictions.add("places of statistics")

    def tables(self) -> Iterator[ResultTable]:
        columns = ("packets", "median us", "90 % us", "99 % us", "longest us")
        whole = sorted(self._whole.items(), key=lambda item: -item[1].count)[:SHOWN]
        rows = [(outcome, *_figures(spread)) for outcome, spread in whole]
        yield ResultTable("From the first probe to the last", ("outcome", *columns), rows, "median us")
        between = sorted(self._between.items(), key=lambda item: -item[1].count)[:SHOWN]
        rows = [(f"{a} > {b}", *_figures(spread)) for (a, b), spread in between]
        yield ResultTable("From place to place", ("way", *columns), rows, "median us")


def _figures(spread: Distribution) -> tuple[int | float, ...]:
    return spread.count, spread.at(0.5), spread.at(0.9), spread.at(0.99), spread.most / 1e3


STATISTIC = LatencyStatistic
