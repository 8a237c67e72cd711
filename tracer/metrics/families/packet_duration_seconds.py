# SPDX-License-Identifier: Apache-2.0
"""How long packets were in the node, from the first hop to the last one, by how they ended."""

from __future__ import annotations

from tracer.analysis.durations import PathDurations
from tracer.metrics.family import HistogramFamily, MetricDescription, MetricKind
from tracer.metrics.metric_sources import MetricSources
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.packets.outcome import BAD

BOUNDS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.1, 1.0)
"""Upper bounds of the buckets, s: a packet takes some ten microseconds for each netfilter hook, queues take milliseconds."""


class PacketDuration(HistogramFamily):
    """Measures packets that failed, and SYNs."""

    DESCRIPTION = MetricDescription(
        MetricKind.HISTOGRAM,
        "Time from the first hop to the last one of packets that failed and of SYNs, by how they ended.",
        labels=("outcome",),
        unit="seconds",
        bounds=BOUNDS,
    )

    def __init__(self, sources: MetricSources) -> None:
        super().__init__(sources)
        self._durations = PathDurations()

    def packet(self, packet: Packet) -> None:
        ns = self._durations.whole(packet)
        if ns is not None:
            self._add((packet.outcome.value,), ns / 1e9)

    def syn(self, verdict: HandshakeVerdict) -> None:
        # A SYN that failed was given as a packet, too.
        if verdict.attempt and verdict.attempt.syn.outcome not in BAD:
            self.packet(verdict.attempt.syn)


METRIC = PacketDuration
