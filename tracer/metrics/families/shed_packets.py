# SPDX-License-Identifier: Apache-2.0
"""Packets that were left out on purpose: the ring buffer was nearly full, or the agent was over its budget."""

from __future__ import annotations

from collections.abc import Iterable

from tracer.metrics.family import Family, MetricDescription, MetricKind, Sample
from tracer.metrics.metric_sources import MetricSources
from tracer.model.loss import LEFT_OUT, RING_NEARLY_FULL, SHED_KINDS
from tracer.render.base import LostEvents


class ShedPackets(Family):
    """Counts them by kind; each kind is there from the beginning, with 0."""

    DESCRIPTION = MetricDescription(
        MetricKind.COUNTER,
        "Packets of which nothing was recorded, or their failure alone, by kind: openings and failures over the budget, any "
        "while the ring buffer was nearly full.",
        labels=("kind",),
    )

    def __init__(self, sources: MetricSources) -> None:
        super().__init__(sources)
        self._counts = dict.fromkeys(SHED_KINDS.values(), 0)

    def lost(self, loss: LostEvents) -> None:
        if loss.probe == LEFT_OUT:
            self._counts[SHED_KINDS.get(loss.why, SHED_KINDS[RING_NEARLY_FULL])] += loss.count

    def samples(self) -> Iterable[Sample]:
        return [Sample((kind,), count) for kind, count in self._counts.items()]


METRIC = ShedPackets
