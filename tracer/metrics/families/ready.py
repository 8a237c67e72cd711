# SPDX-License-Identifier: Apache-2.0
"""Whether the probes are attached."""

from __future__ import annotations

from collections.abc import Iterable

from tracer.metrics.family import Family, MetricDescription, MetricKind, Sample


class ReadyGauge(Family):
    """The same as /readyz."""

    DESCRIPTION = MetricDescription(
        MetricKind.GAUGE, "1 while the probes are attached and packets are counted; 0 during the start and the end."
    )

    def samples(self) -> Iterable[Sample]:
        return [Sample((), int(self._sources.is_ready()))]


METRIC = ReadyGauge
