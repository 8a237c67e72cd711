# SPDX-License-Identifier: Apache-2.0
"""Events that were lost, by the probe that could not write them."""

from __future__ import annotations

from tracer.metrics.family import CounterFamily, MetricDescription, MetricKind
from tracer.metrics.label_value import label_value
from tracer.model.loss import LEFT_OUT
from tracer.render.base import LostEvents


class EventLosses(CounterFamily):
    """Counts them."""

    DESCRIPTION = MetricDescription(
        MetricKind.COUNTER,
        "Events of packets that were lost, by probe: what is counted of these packets may lack something.",
        labels=("probe",),
    )

    def lost(self, loss: LostEvents) -> None:
        if loss.probe != LEFT_OUT:
            self._add((label_value(loss.probe),), loss.count)


METRIC = EventLosses
