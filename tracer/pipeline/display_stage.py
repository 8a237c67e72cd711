# SPDX-License-Identifier: Apache-2.0
"""Prints packets and counts the printed ones."""

from __future__ import annotations

from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.packets.outcome import BAD
from tracer.packets.shared_packet import SharedPacket
from tracer.pipeline.stage import Stage
from tracer.render.base import Output


class DisplayStage(Stage):
    """Writes packets to the outputs. Later stages also get packets that are not printed.

    Args:
        summary: counts the printed packets.
        drops_only: prints and counts only packets with a bad outcome.
        by_connection: packets are counted, and printed as timelines by another stage.
        quiet: prints only packets with a bad outcome; counts all.
    """

    def __init__(self, summary: RunSummary, drops_only: bool = False, by_connection: bool = False, quiet: bool = False) -> None:
        self._summary, self._drops_only, self._by_connection, self._quiet = summary, drops_only, by_connection, quiet

    def feed(self, packet: Packet, output: Output) -> Packet:
        if self._counts(packet):
            output.packet(packet)
        return packet

    def repeat(self, packet: SharedPacket, output: Output) -> SharedPacket:
        if self._counts(packet.way.sample):
            output.repeat(packet)
        return packet

    def _counts(self, packet: Packet) -> bool:
        """Counts a packet, or one that ended like it. Returns whether it is printed."""
        is_bad = packet.outcome in BAD
        if self._drops_only and not is_bad:
            return False
        summary = self._summary
        summary.packets += 1
        summary.incomplete += not packet.complete
        summary.outcomes[packet.outcome] = summary.outcomes.get(packet.outcome, 0) + 1
        return not self._by_connection and (is_bad or not self._quiet)

    def feed_unexplained(self, packet: Packet, output: Output) -> Packet:
        if packet.outcome in BAD or not (self._drops_only or self._quiet):
            output.packet(packet)
        return packet
