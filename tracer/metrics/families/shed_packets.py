# SPDX-License-Identifier: Apache-2.0
"""Packets that were left out as a whole, because the ring buffer was nearly full."""

from __future__ import annotations

from tracer.metrics.family import MetricDescription, MetricKind, TotalFamily
from tracer.model.loss import LEFT_OUT
from tracer.render.base import LostEvents


class ShedPackets(TotalFamily):
    """Counts them."""

    DESCRIPTION = MetricDescription(
        MetricKind.COUNTER, "Packets of which nothing was recorded, because the ring buffer was nearly full."
    )

    def lost(self, loss: LostEvents) -> None:
        if loss.probe == LEFT_OUT:
            self._count += loss.count


METRIC = ShedPackets
