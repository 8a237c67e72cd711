# SPDX-License-Identifier: Apache-2.0
"""Selects packets by the conditions that user space evaluates, before they are attributed, counted or judged."""

from __future__ import annotations

from collections.abc import Sequence

from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.packets.shared_packet import SharedPacket
from tracer.pipeline.stage import Stage
from tracer.render.base import Output
from tracer.selection.display_filter import DisplayFilter
from tracer.selection.pcap_expression import PcapExpression


class SelectionStage(Stage):
    """Lets a packet pass that every filter selects."""

    def __init__(self, filters: Sequence[DisplayFilter]) -> None:
        self._filters = tuple(each for each in filters if each != DisplayFilter())

    def feed(self, packet: Packet, output: Output) -> Packet | None:
        return packet if all(selects(packet) for selects in self._filters) else None

    def repeat(self, packet: SharedPacket, output: Output) -> SharedPacket | None:
        return packet if self.feed(packet.packet(), output) else None

    def feed_unexplained(self, packet: Packet, output: Output) -> Packet | None:
        return self.feed(packet, output)

    def flush(self, summary: RunSummary, output: Output) -> None:
        for each in self._filters:
            if isinstance(each.expression, PcapExpression) and each.expression.note:
                output.note(each.expression.note)
