# SPDX-License-Identifier: Apache-2.0
"""What the bounded containers of the agent have evicted."""

from __future__ import annotations

from collections.abc import Iterable

from tracer.metrics.family import Family, MetricDescription, MetricKind, Sample
from tracer.util.evictions import evictions


class EvictedEntries(Family):
    """Counted by the containers themselves; a container without an eviction has no series."""

    DESCRIPTION = MetricDescription(
        MetricKind.COUNTER,
        "Entries that the agent's bounded containers evicted, by container; docs/bounds.md says what each one means.",
        labels=("container",),
    )

    def samples(self) -> Iterable[Sample]:
        return [Sample((name,), count) for name, count in evictions.totals().items()]


METRIC = EvictedEntries
