# SPDX-License-Identifier: Apache-2.0
"""The label sets of one metric: the most frequent ones have a series each, all others together have the series `other`.

An increment is counted once, in the series that its label set has at that moment, and is never moved. So the sum of all series
never loses or repeats an increment, and rate() and increase() are right for the sum and for each series:

- A label set gets a series of its own at once while there is room.
- Without room it is counted in `other`, and is a candidate. When PERIOD_NS have passed, the candidates with the largest number
  of increments in that time take the places of the series with the smallest number, if they had more than TAKES_OVER times as
  many. A new series begins with 0: what was counted before stays in `other`.
- An evicted series ends. Its increments are not added to `other`: there they would be a second time, all at one moment. If its
  label set comes back, the series begins with 0 again, which Prometheus takes as the restart of a counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from tracer.metrics.label_value import OTHER
from tracer.util.evictions import evictions
from tracer.util.lru_dict import LruCounter

V = TypeVar("V")
Labels = tuple[str, ...]
"""The values of a metric's labels, in their order."""

PERIOD_NS = 300_000_000_000
"""Time after which candidates are compared with the series, ns: as long as Prometheus looks back for a value."""
TAKES_OVER = 2
"""A candidate needs more than this many times the increments of the series that it replaces, so that two of the same size do
not replace each other for ever."""
CANDIDATES_KEPT = 1024
"""Number of label sets that wait for a series."""


class _Series(Generic[V]):
    """The value of one series. recent: number of increments in the current period."""

    __slots__ = ("recent", "value")

    def __init__(self, value: V) -> None:
        self.value, self.recent = value, 0


class LabelSets(Generic[V]):
    """The series of one metric.

    Args:
        labels: Number of labels.
        most: Largest number of series beside `other`.
        make: Makes the value of a new series.

    Attributes:
        evicted: Number of series that ended because others took their places.
    """

    def __init__(self, labels: int, most: int, make: Callable[[], V]) -> None:
        self._most, self._make = most, make
        self._series: dict[Labels, _Series[V]] = {}
        self._candidates: LruCounter[Labels] = LruCounter(CANDIDATES_KEPT, "label sets without a series of their own")
        self._other_labels, self._other = (OTHER,) * labels, make()
        self._has_other = False
        self.evicted = 0

    def value(self, labels: Labels) -> V:
        """The value that counts one further increment of a label set: that of its series, or that of `other`."""
        if labels == self._other_labels:  # an object that really has this name
            self._has_other = True
            return self._other
        series = self._series.get(labels)
        if series is None:
            if len(self._series) >= self._most:
                self._has_other = True
                self._candidates[labels] += 1
                return self._other
            series = self._series[labels] = _Series(self._make())
        series.recent += 1
        return series.value

    def end_period(self) -> None:
        """Gives the most frequent candidates the places of the least frequent series."""
        candidates = sorted(self._candidates.items(), key=lambda item: item[1], reverse=True)
        rarest = sorted(self._series.items(), key=lambda item: item[1].recent)
        for (candidate, count), (labels, series) in zip(candidates, rarest, strict=False):
            if count <= TAKES_OVER * series.recent:
                break
            del self._series[labels]
            self._series[candidate] = _Series(self._make())
            self.evicted += 1
            evictions.add("label sets of a metric")
        self._candidates.clear()
        for series in self._series.values():
            series.recent = 0

    def items(self) -> Iterator[tuple[Labels, V]]:
        """The label sets and their values; `other` only from its first increment on."""
        for labels, series in self._series.items():
            yield labels, series.value
        if self._has_other:
            yield self._other_labels, self._other
