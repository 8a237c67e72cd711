# SPDX-License-Identifier: Apache-2.0
"""The sink of the always-on agent: counts the results of the run. Notes and findings are also written to stderr, its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from tracer.metrics.health import AgentHealth
from tracer.metrics.metric_book import MetricBook
from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.packets.outcome import BAD
from tracer.render.base import LostEvents, Output


class MetricsOutput(Output):
    """Counts what fails, and SYNs. Any other packet is not counted, whether or not the probes report it.

    Args:
        book: The metrics.
        health: Learns when the run begins, goes on and ends.
        err: Stream for notes; None = standard error.
    """

    def __init__(self, book: MetricBook, health: AgentHealth, err: TextIO | None = None) -> None:
        super().__init__(err=err)
        self._book, self._health = book, health

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        self.note_limits(results)
        self._health.begin()

    def packet(self, packet: Packet) -> None:
        if packet.outcome in BAD and not packet.unexplained:
            self._book.packet(packet)

    def syn(self, verdict: HandshakeVerdict) -> None:
        self._book.syn(verdict)

    def lost(self, loss: LostEvents) -> None:
        super().lost(loss)
        self._book.lost(loss)

    def finding(self, finding: Finding) -> None:
        self._book.finding(finding)
        self.note_finding(finding)

    def end_batch(self, now: int) -> None:
        self._book.end_batch(now)
        self._health.end_batch()

    def summary(self, summary: RunSummary) -> None:
        self._health.end()

    def doctor(self, results: Sequence[CheckResult], status: int) -> None:
        """An agent runs no `doctor`."""
