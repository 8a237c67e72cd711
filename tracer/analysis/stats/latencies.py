# SPDX-License-Identifier: Apache-2.0
"""How long packets took from one place to the next (tracer/analysis/durations.py)."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.durations import Distribution, PathDurations
from tracer.analysis.result_table import ResultTable
from tracer.analysis.stats import MOST
from tracer.model.packet import Packet
from tracer.util.evictions import evictions

SHOWN = 25


class LatencyStatistic:
    def __init__(self) -> None:
        self._durations = PathDurations()
        self._between: dict[tuple[str, str], Distribution] = {}
        self._whole: dict[str, Distribution] = {}

    def feed(self, packet: Packet) -> None:
        for way, ns in self._durations.legs(packet):
            self._add(self._between, way, ns)
        whole = self._durations.whole(packet)
        if whole is not None:
            self._add(self._whole, packet.outcome, whole)

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
