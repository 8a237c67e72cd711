# SPDX-License-Identifier: Apache-2.0
"""Gives each packet the number of its connection, for tables in which packets and connections are joined."""

from __future__ import annotations

from tracer.connections.tracker import MAX_TIMELINES, ConnectionTracker
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.model.timeline import Timeline
from tracer.packets import icmp
from tracer.packets.outcome import BAD
from tracer.pipeline.stage import Stage
from tracer.render.base import Output
from tracer.util.frozen import evolve


class ConnectionNumberStage(Stage):
    """Numbers connections as `--follow` joins them, and gives each one to the output once, when it is over.

    Args:
        wall_offset: ns to add to CLOCK_MONOTONIC to get ns since the epoch.
        max_connections: most open connections; at more, those unused for longest are over.
    """

    def __init__(self, wall_offset: int = 0, max_connections: int = MAX_TIMELINES) -> None:
        self._connections = ConnectionTracker(wall_offset, max_connections, gives_each_end=True)

    def feed(self, packet: Packet, output: Output) -> Packet:
        if packet.outcome not in BAD and icmp.is_neighbor_discovery(packet):
            return packet
        return evolve(packet, connection=self._connections.feed(packet))

    def end_batch(self, now: int, output: Output) -> None:
        self._write([timeline for timeline in self._shown(self._connections.expire(now)) if timeline.over], output)

    def flush(self, summary: RunSummary, output: Output) -> None:
        self._write(self._shown(self._connections.close()), output)

    def _shown(self, timelines: list[Timeline]) -> list[Timeline]:
        """The timelines, without their entries: the output needs the totals only."""
        for timeline in timelines:
            self._connections.mark_written(timeline)
        return timelines

    @staticmethod
    def _write(timelines: list[Timeline], output: Output) -> None:
        for timeline in timelines:
            output.connection(timeline)
