# SPDX-License-Identifier: Apache-2.0
"""All metrics of a run. The thread of the run writes them, threads that serve them read: one lock is between them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from tracer.metrics.families import metrics
from tracer.metrics.family import PREFIX, Family, HistogramSample, MetricDescription, MetricKind, Sample
from tracer.metrics.label_sets import PERIOD_NS
from tracer.metrics.metric_sources import MetricSources
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.render.base import LostEvents


class ReadMetric(NamedTuple):
    """A metric as it was at one moment.

    Attributes:
        name: Its name with prefix, without the suffix of its type.
        description: What does not change in it.
        samples: Its samples.
    """

    name: str
    description: MetricDescription
    samples: tuple[Sample | HistogramSample, ...]


def exposed_name(name: str, kind: MetricKind) -> str:
    """The name of a metric as a query has it. name: that of its file."""
    return f"{PREFIX}{name}" + "_total" * (kind is MetricKind.COUNTER)


class MetricBook:
    """All metrics of a run. sources: its `evicted` is replaced: this object knows it."""

    def __init__(self, sources: MetricSources) -> None:
        own = replace(sources, evicted=self._evicted)
        self._lock = threading.Lock()
        self._families = tuple((name, make(own)) for name, make in metrics())
        self._of_packet = self._that_override("packet")
        self._of_syn = self._that_override("syn")
        self._period_began = 0

    def _that_override(self, method: str) -> tuple[Family, ...]:
        """The metrics that take this kind of result: most packets concern few of them."""
        return tuple(f for _, f in self._families if getattr(type(f), method) is not getattr(Family, method))

    def packet(self, packet: Packet) -> None:
        """Counts a packet that did not reach its destination."""
        with self._lock:
            for family in self._of_packet:
                family.packet(packet)

    def syn(self, verdict: HandshakeVerdict) -> None:
        """Counts a SYN that has its cause."""
        with self._lock:
            for family in self._of_syn:
                family.syn(verdict)

    def finding(self, finding: Finding) -> None:
        """Counts a finding."""
        with self._lock:
            for _, family in self._families:
                family.finding(finding)

    def lost(self, loss: LostEvents) -> None:
        """Counts lost events or shed packets."""
        with self._lock:
            for _, family in self._families:
                family.lost(loss)

    def end_batch(self, now: int) -> None:
        """A batch has ended. now: its time, ns, CLOCK_MONOTONIC."""
        with self._lock:
            is_over = now - (self._period_began or now) >= PERIOD_NS
            self._period_began = now if is_over else self._period_began or now
            for _, family in self._families:
                family.end_batch()
                if is_over:
                    family.end_period()

    def read(self) -> Iterable[ReadMetric]:
        """All metrics as they are now."""
        with self._lock:
            return [
                ReadMetric(f"{PREFIX}{name}", family.DESCRIPTION, tuple(family.samples())) for name, family in self._families
            ]

    def _evicted(self) -> dict[str, int]:
        kinds = ((exposed_name(name, f.DESCRIPTION.kind), f) for name, f in self._families)
        return {name: family.evicted for name, family in kinds if family.evicted}
