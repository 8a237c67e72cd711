# SPDX-License-Identifier: Apache-2.0
"""Batches of events that were read and explained."""

from __future__ import annotations

from tracer.metrics.family import MetricDescription, MetricKind, TotalFamily


class BatchCount(TotalFamily):
    """Counts them."""

    DESCRIPTION = MetricDescription(
        MetricKind.COUNTER, "Readings of the ring buffer, with their packets explained; it stands still when the agent hangs."
    )

    def end_batch(self) -> None:
        self._count += 1


METRIC = BatchCount
