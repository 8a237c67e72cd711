# SPDX-License-Identifier: Apache-2.0
"""Counted packets of which events were lost."""

from __future__ import annotations

from tracer.metrics.family import MetricDescription, MetricKind, TotalFamily
from tracer.model.packet import Packet


class IncompletePackets(TotalFamily):
    """Counts them."""

    DESCRIPTION = MetricDescription(
        MetricKind.COUNTER, "Packets among k8snet_trace_dropped_packets_total of which events may be lost."
    )

    def packet(self, packet: Packet) -> None:
        self._count += not packet.complete


METRIC = IncompletePackets
