# SPDX-License-Identifier: Apache-2.0
"""One run of the tracer: reads batches of events, and passes the packets through the stages to the outputs."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing

from tracer.model.evidence import Evidence
from tracer.model.summary import RunSummary
from tracer.packets.shared_packet import AnyPacket, SharedPacket
from tracer.pipeline.assembly import Assembler
from tracer.pipeline.backlog import Backlog
from tracer.pipeline.shutdown import StopRequest
from tracer.pipeline.source import Batch, EventSource, RunLimits
from tracer.pipeline.stage import Stage
from tracer.render.base import Output
from tracer.util import memory
from tracer.util.evictions import evictions, format_evictions

_log = logging.getLogger(__name__)


class Run:
    """Connects a source, the packet assembler, the stages and an output. Built by builder.py.

    Args:
        source: gives batches.
        assembler: makes packets.
        stages: the steps that packets pass, in order.
        output: where stages write.
        limits: when the run ends by itself.
        summary: totals of the run, which the stages share; None = new ones.

    Attributes:
        stop: request to end.
        command: the traced command; None = none.
    """

    def __init__(
        self,
        source: EventSource,
        assembler: Assembler,
        stages: Sequence[Stage],
        output: Output,
        limits: RunLimits = RunLimits(),  # noqa: B008
        summary: RunSummary | None = None,
    ) -> None:
        self._source, self._assembler, self._stages, self._output = source, assembler, stages, output
        self.limits, self.summary = limits, summary or RunSummary()
        self.stop = StopRequest()
        self.command: subprocess.Popen[bytes] | None = None
        self._backlog = Backlog()

    @property
    def is_limit_reached(self) -> bool:
        """Whether the run has printed as many packets as it should."""
        return bool(self.limits.count) and self.summary.packets >= self.limits.count

    @property
    def is_waiting_for_rules(self) -> bool:
        """Whether rules that open packets have passed are being read."""
        return self._assembler.is_waiting_for_rules

    def begin(self) -> None:
        """Call when the probes are attached, before the first batch."""
        for stage in self._stages:
            stage.begin(self._output)

    def run(self, stop: StopRequest, command: subprocess.Popen[bytes] | None = None) -> None:
        """Reads all batches of the source and prints their packets.

        Packets that could not be explained in time after the stop are counted in `summary.unexplained`.

        Args:
            stop: request to end.
            command: a live run ends with this command; None = none.
        """
        self.stop, self.command = stop, command
        with memory.few_collections(), closing(self._source.batches(self)) as batches:
            for batch in batches:
                self.feed(batch)
        for stage in self._stages:
            stage.flush(self.summary, self._output)
        self.summary.seconds = self._source.seconds
        _log.debug(format_evictions(evictions.read()))
        if self._source.explains_backlog and not (self.limits.stops_at_count and self.is_limit_reached):
            self._explain_backlog()

    def _explain_backlog(self) -> None:
        """Prints the packets that the recorded run had not explained. They are not part of its summary, findings, SYN verdicts
        and timelines."""
        for packet in self._backlog.packets(self._assembler):
            if self.stop.is_requested:
                return
            for stage in self._stages:
                selected = stage.feed_unexplained(packet, self._output)
                if selected is None:
                    break
                packet = selected

    def feed(self, batch: Batch) -> None:
        """Processes one batch."""
        self._output.begin_batch()
        for stage in self._stages:
            stage.begin_batch()
        self._assembler.is_uniform = batch.is_uniform
        self._assembler.feed(batch.events)
        if batch.losses:
            self._assembler.add_losses(batch.losses, batch.now)
            self._add_loss(batch.now)
        for loss in batch.losses:
            self.summary.lost += loss.count
            self._output.lost(loss)
        for packet in self._packets(batch):
            self._feed_stages(packet)
        unexplained = self._backlog.count(self._assembler)
        if batch.last:
            self.summary.unexplained = unexplained
        if unexplained:
            self._add_loss(batch.now, is_unexplained=True)
        horizon = self._assembler.horizon(batch.now)
        for stage in self._stages:
            stage.end_batch(horizon, self._output)
        self.summary.events, self.summary.unaddressed = self._assembler.events, self._assembler.unaddressed
        for note in self._source.notes():
            self._output.note(note)
        self._output.settled(horizon)
        self._output.end_batch(batch.now)

    def _feed_stages(self, packet: AnyPacket) -> None:
        if self.limits.count and self.is_limit_reached:
            return
        output = self._output
        for stage in self._stages:
            selected = stage.repeat(packet, output) if isinstance(packet, SharedPacket) else stage.feed(packet, output)
            if selected is None:
                return
            packet = selected

    def _add_loss(self, now: int, is_unexplained: bool = False) -> None:
        for stage in self._stages:
            stage.add_loss(now, is_unexplained)

    def _packets(self, batch: Batch) -> Iterator[AnyPacket]:
        """Yields closed packets until the time to explain is over; in a replay, only those that the recorded run explained."""
        chunks, explained = self._assembler.chunks(None if batch.last else batch.now), 0
        while not self._backlog.evidence:
            open_before = self._assembler.open
            if self.stop.is_overdue or explained == batch.explained:
                if open_before:
                    self._backlog.begin(Evidence.OBSERVED)
                    self._source.mark_unexplained(explained)
                return
            chunk = next(chunks, None)
            if chunk is None:
                return
            if self._source.was_unexplained():
                self._backlog.begin(Evidence.DERIVED, chunk, open_before - self._assembler.open)
                return
            explained += 1
            yield from chunk
            self._source.poll_losses()
