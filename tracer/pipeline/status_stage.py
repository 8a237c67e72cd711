# SPDX-License-Identifier: Apache-2.0
"""The status line of a live run: what it has read, matched, shown and lost so far.

The probes do not count packets that the filter does not match, because a counter would cost every packet of the node; so their
number is not known here.
"""

from __future__ import annotations

import time

from tracer.model.loss import LEFT_OUT
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.packets.shared_packet import SharedPacket
from tracer.pipeline.stage import Stage
from tracer.render.base import Output
from tracer.util.reading_progress import rules_read
from tracer.util.status_line import StatusLine

STATUS_SECONDS = 1.0
"""Shortest time between two status lines, s."""


class StatusStage(Stage):
    """Counts packets before any other stage, and writes the line.

    Args:
        summary: Totals of the run; `packets` are the shown ones.
        line: The line.
        explains: Packets are explained and shown, not only recorded.
    """

    def __init__(self, summary: RunSummary, line: StatusLine, explains: bool = True) -> None:
        self._summary, self._line, self._explains = summary, line, explains
        self._matched, self._next = 0, time.monotonic() + STATUS_SECONDS

    def feed(self, packet: Packet, output: Output) -> Packet:
        self._matched += 1
        self._show(output)
        return packet

    def repeat(self, packet: SharedPacket, output: Output) -> SharedPacket:
        self._matched += 1
        self._show(output)
        return packet

    def end_batch(self, now: int, output: Output) -> None:
        self._show(output)

    def flush(self, summary: RunSummary, output: Output) -> None:
        self._line.erase()

    def close(self) -> None:
        self._line.erase()

    def _show(self, output: Output) -> None:
        if self._line.is_live and time.monotonic() >= self._next:
            self._line.show(self._text(output))
            self._next = time.monotonic() + STATUS_SECONDS

    def _text(self, output: Output) -> str:
        lost = next(output.outputs()).lost_by_probe
        shed = lost[LEFT_OUT]
        counts = [f"{self._summary.events:,} events read"]
        if self._explains:
            counts += [f"{self._matched:,} packets matched", f"{self._summary.packets:,} shown"]
        if shed:
            counts.append(f"{shed:,} packets left out")
        if lost.total() > shed:
            counts.append(f"{lost.total() - shed:,} events lost")
        if reading := rules_read.phrase():
            counts.append(reading)
        return ", ".join(counts)
