# SPDX-License-Identifier: Apache-2.0
"""Series that ended because the label sets of others were more frequent."""

from __future__ import annotations

from collections.abc import Iterable

from tracer.metrics.family import Family, MetricDescription, MetricKind, Sample


class EvictedLabelSets(Family):
    """Counted by the metrics themselves; a metric without an eviction has no series."""

    DESCRIPTION = MetricDescription(
        MetricKind.COUNTER,
        "Series that ended because other label sets became more frequent, by the name of their metric.",
        labels=("metric",),
    )

    def samples(self) -> Iterable[Sample]:
        return [Sample((name,), count) for name, count in self._sources.evicted().items()]


METRIC = EvictedLabelSets
