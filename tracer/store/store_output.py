# SPDX-License-Identifier: Apache-2.0
"""The output of a run that goes to a store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TextIO

from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.loss import Loss
from tracer.model.packet import Packet
from tracer.model.summary import OutputLoss, RunSummary
from tracer.model.timeline import Timeline
from tracer.render.base import LostEvents, Output
from tracer.store.store_rows import StoreRows
from tracer.store.store_writer import StoreWriter
from tracer.util.token_bucket import TokenBucket

END_SECONDS = 5.0
"""Longest time that the end of a run waits for the store, s. What it does not get then stays in the spool."""
PACKETS_PER_SECOND, PACKETS_AT_ONCE = 20.0, 500.0
"""Packets that an agent stores whole, on average, and at most at once: each takes some 2.5 ms of CPU time."""
TOO_MANY = "so many failed that only their rows in `drops` were stored"
NOTE_NS = 60_000_000_000
"""Shortest time between two notes about lost rows, ns."""


class StoreOutput(Output):
    """Gives each result to a writer, and says what the store will not get.

    Args:
        writer: The writer; `summary` closes it.
        url: The store, for messages.
        err: Stream for notes; None = standard error.
        end_seconds: Longest time that the end waits for the store, s.
        has_final_findings: Findings are stored at the end of the run, with all their packets. If not, they are stored as they
            are when they become certain: a node may be gone before the run ends.
    """

    def __init__(
        self,
        writer: StoreWriter,
        url: str,
        err: TextIO | None = None,
        end_seconds: float = END_SECONDS,
        has_final_findings: bool = False,
    ) -> None:
        super().__init__(err=err)
        self._writer, self._url, self._end_seconds, self._has_final_findings = writer, url, end_seconds, has_final_findings
        self._rows = StoreRows()
        self._is_urgent = self._is_away = False
        self._bucket = TokenBucket(PACKETS_AT_ONCE, PACKETS_PER_SECOND, time.monotonic())
        self._not_noted = self._noted = 0

    def set_clock(self, offset: int) -> None:
        self._rows.clock_offset = offset

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        if self._writer.adopted:
            self.note(f"The spool has rows of {self._writer.adopted} earlier runs: they go to {self._url}, too.")

    def packet(self, packet: Packet) -> None:
        is_whole = self._has_final_findings or self._bucket.take(time.monotonic())
        if not is_whole:
            self._writer.leave_out("packets", TOO_MANY)
        self._writer.add(self._rows.packet(packet, is_whole))

    def syn(self, verdict: HandshakeVerdict) -> None:
        self._writer.add(self._rows.syn(verdict))

    def connection(self, timeline: Timeline) -> None:
        self._writer.add(self._rows.connection(timeline))

    def lost(self, loss: LostEvents) -> None:
        super().lost(loss)
        if isinstance(loss, Loss):
            self._writer.add(self._rows.loss(loss))

    def finding(self, finding: Finding) -> None:
        if not self._has_final_findings:
            self._writer.add(self._rows.finding(finding))
            self._is_urgent = True

    def end_batch(self, now: int) -> None:
        if not self._writer.commit(self._is_urgent):
            self._rows.forget_rulesets()
        self._is_urgent = False
        self._say_what_is_lost(now)
        self._say_whether_it_is_away()

    def _say_what_is_lost(self, now: int) -> None:
        for (table, why), count in self._writer.read_lost().items():
            self._not_noted += count
            if why != TOO_MANY:
                self._rows.forget_rulesets()
            if table != "losses":  # a row about a row that says so would never end
                self._writer.add([self._rows.rows_not_stored(table, count, why)])
        if self._not_noted and (not self._noted or now - self._noted >= NOTE_NS):
            causes = " and ".join(sorted({why for _, why in self._writer.lost}))
            self.note(f"{self._not_noted} rows are lost for {self._url}: {causes}. The table `losses` counts them.")
            self._noted, self._not_noted = now, 0

    def _say_whether_it_is_away(self) -> None:
        problem = self._writer.uploader.problem
        if bool(problem) != self._is_away:
            self._is_away = bool(problem)
            self.note(f"{problem} Rows wait in the spool." if problem else f"{self._url} takes rows again.")

    def summary(self, summary: RunSummary) -> None:
        now = time.time_ns()
        if self._has_final_findings:
            now = self._rows.latest or now  # the end of a capture
            for finding in summary.findings:
                self._writer.add(self._rows.finding(finding))
        self._writer.add(self._rows.counters(summary.differences, now))
        waiting = self._writer.close(self._end_seconds)
        summary.not_written += [
            OutputLoss(f"{self._url} {table}".rstrip(), count, why) for (table, why), count in self._writer.lost.items()
        ]
        if waiting:
            why = self._writer.uploader.problem or "The store was too slow."
            self.note(f"{waiting} segments wait in the spool for the next run with --store: {why}")

    def doctor(self, results: Sequence[CheckResult], status: int) -> None:
        """A run with a store runs no `doctor`."""
