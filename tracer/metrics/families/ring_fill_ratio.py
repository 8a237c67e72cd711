# SPDX-License-Identifier: Apache-2.0
"""How full the ring buffer was at each reading."""

from __future__ import annotations

from tracer.metrics.family import HistogramFamily, MetricDescription, MetricKind
from tracer.util.ring_level import ring_level


class RingFill(HistogramFamily):
    """Measures it once for each batch."""

    DESCRIPTION = MetricDescription(
        MetricKind.HISTOGRAM,
        "Share of the ring buffer that was full when it was read, 20 times a second; above 0.75 packets are left out.",
        unit="ratio",
        bounds=(0.01, 0.1, 0.25, 0.5, 0.75, 0.9),
    )

    def end_batch(self) -> None:
        self._add((), ring_level.share)


METRIC = RingFill
