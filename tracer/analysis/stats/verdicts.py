# SPDX-License-Identifier: Apache-2.0
"""Counts packets by outcome and by verdict."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.analysis.result_table import ResultTable
from tracer.analysis.stats._counter import KeyCounter, titled
from tracer.model.packet import Packet

SHOWN = 20


class VerdictStatistic:
    def __init__(self) -> None:
        self._outcomes: KeyCounter[str] = KeyCounter()
        self._verdicts: KeyCounter[tuple[str, str]] = KeyCounter()
        self._packets = self._incomplete = self._unexplained = 0

    def feed(self, packet: Packet) -> None:
        self._packets += 1
        self._incomplete += not packet.complete
        self._unexplained += packet.unexplained is not None
        self._outcomes.add(packet.outcome)
        self._verdicts.add((packet.outcome, packet.verdict))

    def tables(self) -> Iterator[ResultTable]:
        title = f"Outcomes of {self._packets:,} packets, {self._incomplete:,} of them incomplete"
        title += f", {self._unexplained:,} not explained by the run" * bool(self._unexplained)
        yield ResultTable(title, ("outcome", "packets"), self._outcomes.most(SHOWN), "packets")
        rows = [(count, outcome, words) for (outcome, words), count in self._verdicts.most(SHOWN)]
        yield ResultTable(titled("How they ended", self._verdicts), ("packets", "outcome", "verdict"), rows)


STATISTIC = VerdictStatistic
