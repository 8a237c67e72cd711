# SPDX-License-Identifier: Apache-2.0
"""What a metric can do: it takes the results of the run that concern it, and gives its samples.

A metric is one file of tracer/metrics/families. It overrides the methods that it needs. They are called by the thread of the
run, and `samples` by a thread that serves metrics, never both at once: MetricBook has the lock.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Generic, NamedTuple, TypeVar

from tracer.metrics.label_sets import Labels, LabelSets
from tracer.metrics.metric_sources import MetricSources
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.render.base import LostEvents

PREFIX = "k8snet_trace_"
V = TypeVar("V")


class MetricKind(StrEnum):
    """The type of a metric, by its name in OpenMetrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class Sample(NamedTuple):
    """A value of a counter or a gauge; of an info the value is 1.

    Attributes:
        labels: Values of the labels, in their order.
        value: The value.
    """

    labels: Labels
    value: float


class HistogramSample(NamedTuple):
    """A histogram.

    Attributes:
        labels: Values of the labels, in their order.
        counts: Number of values in each bucket and those below it; the last one is that of all values.
        total: Sum of the values.
    """

    labels: Labels
    counts: Sequence[int]
    total: float


@dataclass(frozen=True)
class MetricDescription:
    """What does not change in a metric.

    Attributes:
        kind: Its type.
        text: What it means, one sentence.
        labels: Names of its labels.
        unit: Its unit, which is also the end of its name; "" = a number of things.
        bounds: Of a histogram: the upper bounds of the buckets, without the last one, which has none.
    """

    kind: MetricKind
    text: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    bounds: tuple[float, ...] = ()


class Family(ABC):
    """One metric.

    Args:
        sources: What it is made of beside the results of the run.

    Attributes:
        DESCRIPTION: What does not change in it.
    """

    DESCRIPTION: ClassVar[MetricDescription]

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources

    def packet(self, packet: Packet) -> None:
        """Takes a packet that did not reach its destination."""
        return

    def syn(self, verdict: HandshakeVerdict) -> None:
        """Takes a SYN that has its cause."""
        return

    def finding(self, finding: Finding) -> None:
        """Takes a finding, once for each cause."""
        return

    def lost(self, loss: LostEvents) -> None:
        """Takes lost events or shed packets."""
        return

    def end_batch(self) -> None:
        """A batch of events was read and explained."""
        return

    def end_period(self) -> None:
        """PERIOD_NS have passed: the label sets with a series are chosen again."""
        return

    @property
    def evicted(self) -> int:
        """Number of its series that ended because others took their places."""
        return 0

    @abstractmethod
    def samples(self) -> Iterable[Sample | HistogramSample]:
        """The samples, as they are now; none = the value cannot be read."""


class Tally:
    """A number that only grows."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class LabelledFamily(Family, Generic[V]):
    """A metric with bounded label sets, each with a value."""

    def __init__(self, sources: MetricSources) -> None:
        super().__init__(sources)
        self._sets = LabelSets(len(self.DESCRIPTION.labels), sources.label_sets, self._make)

    @abstractmethod
    def _make(self) -> V:
        """The value of a label set that has nothing yet."""

    def end_period(self) -> None:
        self._sets.end_period()

    @property
    def evicted(self) -> int:
        return self._sets.evicted


class CounterFamily(LabelledFamily[Tally]):
    """A counter with bounded label sets."""

    def _make(self) -> Tally:
        return Tally()

    def _add(self, labels: Labels, count: int = 1) -> None:
        self._sets.value(labels).count += count

    def samples(self) -> Iterable[Sample]:
        return [Sample(labels, tally.count) for labels, tally in self._sets.items()]


class SettingFamily(Family):
    """A gauge without labels: a number in /proc/sys, read when the metrics are read; no sample while it is not there.

    Attributes:
        SETTING: Path of its file, relative to /proc/sys.
    """

    SETTING: ClassVar[str]

    def samples(self) -> Iterable[Sample]:
        text = self._sources.host.setting(self.SETTING, kept_seconds=0)
        return [Sample((), int(text))] if text.isdecimal() else []


class TotalFamily(Family):
    """A counter without labels: it is there from the beginning, with 0."""

    def __init__(self, sources: MetricSources) -> None:
        super().__init__(sources)
        self._count = 0

    def samples(self) -> Iterable[Sample]:
        return [Sample((), self._count)]


class Buckets:
    """The values of one histogram. bounds: upper bounds of the buckets, without the last one."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds, self._counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Counts one value; one that equals a bound is in its bucket."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def cumulated(self) -> list[int]:
        """Number of values in each bucket and those below it."""
        counts, so_far = [], 0
        for count in self._counts:
            so_far += count
            counts.append(so_far)
        return counts


class HistogramFamily(LabelledFamily[Buckets]):
    """A histogram with bounded label sets."""

    def _make(self) -> Buckets:
        return Buckets(self.DESCRIPTION.bounds)

    def _add(self, labels: Labels, value: float) -> None:
        self._sets.value(labels).add(value)

    def samples(self) -> Iterable[HistogramSample]:
        return [HistogramSample(labels, buckets.cumulated(), buckets.total) for labels, buckets in self._sets.items()]
