# SPDX-License-Identifier: Apache-2.0
"""One run of the tracer: reads batches of events and prints packets until it is stopped."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from tracer.events import record
from tracer.findings import Findings
from tracer.kube.owner_resolver import OwnerResolver
from tracer.model.evidence import Evidence
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.packets.assembler import CHUNK_PACKETS
from tracer.packets.outcome import BAD
from tracer.pipeline.assembly import Assembler
from tracer.pipeline.backlog import Backlog
from tracer.pipeline.connection_stage import ConnectionStage
from tracer.pipeline.shutdown import StopRequest
from tracer.pipeline.source import Batch, EventSource
from tracer.render.base import Output

POLL_SECONDS = 0.05
"""Pause between two reads of the ring buffer, seconds."""
RULES_SECONDS = 5.0
"""Maximum time that the end of a run waits for rules that are being read, seconds."""
EXPLAINING = "Explaining what was seen; Ctrl-C again ends at once."


@dataclass(frozen=True)
class RunLimits:
    """When a run ends by itself.

    Attributes:
        count: number of printed packets; 0 = no limit.
        seconds: duration; 0 = no limit.
        drops_only: only packets with a bad outcome are printed and counted.
    """

    count: int = 0
    seconds: float = 0
    drops_only: bool = False


class Run:
    """Connects a source, the packet assembler and an output, and optionally owners, findings and connections."""

    def __init__(
        self,
        source: EventSource,
        assembler: Assembler,
        output: Output,
        limits: RunLimits,
        kube: OwnerResolver | None = None,
        findings: Findings | None = None,
        connections: ConnectionStage | None = None,
    ) -> None:
        self._source, self._assembler, self._output, self._limits = source, assembler, output, limits
        self._kube, self._findings, self._connections = kube, findings, connections
        self.summary = RunSummary()
        self._stop = StopRequest()
        self._is_limit_reached = self._is_delay_noted = False
        self._backlog = Backlog()

    def begin(self) -> None:
        """Call when the probes are attached, before the first batch."""
        if self._connections:
            self._connections.start(self._output)

    def trace(self, stop: StopRequest, command: subprocess.Popen[bytes] | None = None) -> None:
        """Prints packets until stopped, a limit is reached, or the command has ended; then prints the remaining packets.

        Packets that could not be explained in time after the stop are counted in `summary.unexplained`.
        """
        self._stop, began = stop, time.monotonic()
        while not (stop.is_requested or self._is_limit_reached):
            if self._limits.seconds and time.monotonic() - began >= self._limits.seconds:
                break
            if command and command.poll() is not None:
                time.sleep(2 * POLL_SECONDS)
                break
            time.sleep(POLL_SECONDS)
            self._read()
        until = time.monotonic() + RULES_SECONDS
        while self._assembler.is_waiting_for_rules and not self._is_limit_reached:
            if time.monotonic() >= until or stop.is_overdue:
                break
            time.sleep(POLL_SECONDS)
            self._read()
        self._read(last=True)
        self._finish(time.monotonic() - began)

    def replay(
        self, batches: Iterable[Batch], stop: StopRequest, seconds: float | None = None, stop_at_limit: bool = False
    ) -> None:
        """Prints the packets of recorded batches.

        Args:
            batches: the recorded batches, oldest first.
            stop: request to end.
            seconds: duration of the recorded run; None = the time from its first batch to its last.
            stop_at_limit: stop at this run's packet limit, before the end of the recording.
        """
        self._stop, began, batch = stop, 0, Batch(0, record.NOTHING)
        for batch in batches:
            began = began or batch.now
            self._process(batch)
            if stop.is_requested or (stop_at_limit and self._is_limit_reached):
                break
        if not batch.last:
            self._process(Batch(batch.now, record.NOTHING, last=True))
        self._finish((batch.now - began) / 1e9 if seconds is None else seconds)
        if not (stop_at_limit and self._is_limit_reached):
            self._explain_backlog()

    def _explain_backlog(self) -> None:
        """Prints the packets that the recorded run had not explained. They are not part of its summary, findings, SYN verdicts
        and timelines."""
        for packet in self._backlog.packets(self._assembler):
            if self._stop.is_requested:
                return
            if self._kube:
                if not self._kube.wants(packet):
                    continue
                self._kube.attribute(packet)
            if not self._limits.drops_only or packet.outcome in BAD:
                self._output.packet(packet)

    def _finish(self, seconds: float) -> None:
        if self._connections:
            self._connections.flush(self.summary, self._output)
        self.summary.seconds = seconds
        self.summary.findings = self._findings.all if self._findings else []

    def _read(self, last: bool = False) -> None:
        with self._frozen_objects():
            self._process(self._source.read(last))

    def _frozen_objects(self) -> AbstractContextManager[object]:
        """Freezes the Kubernetes objects during a batch, so that all its packets are explained by the same objects."""
        return self._kube.unchanged() if self._kube else nullcontext()

    def _process(self, batch: Batch) -> None:
        for renewed in self._source.renewals():
            if self._kube:
                self._kube.apply_filter(renewed)
        self._assembler.feed(batch.events)
        if batch.losses:
            self._assembler.add_losses(batch.losses, batch.now)
            if self._connections:
                self._connections.add_loss(batch.now)
        for loss in batch.losses:
            self.summary.lost += loss.count
            self._output.lost(loss)
        for packet in self._packets(batch):
            self._process_packet(packet)
        unexplained = self._backlog.count(self._assembler)
        if batch.last:
            self.summary.unexplained = unexplained
        if unexplained and self._connections:
            self._connections.add_loss(batch.now, unexplained=True)
        if self._connections:
            self._connections.expire(batch.now, self._output)
        self.summary.events, self.summary.unaddressed = self._assembler.events, self._assembler.unaddressed
        self._update_kube()

    def _packets(self, batch: Batch) -> Iterator[Packet]:
        """Yields closed packets until the time to explain is over; in a replay, only those that the recorded run explained."""
        chunks, explained = self._assembler.chunks(None if batch.last else batch.now), 0
        while not self._backlog.evidence:
            open_before = self._assembler.open
            if self._stop.is_overdue or explained == batch.explained:
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
            if self._stop.is_requested and self._assembler.open > CHUNK_PACKETS and not self._is_delay_noted:
                self._is_delay_noted = True
                self._output.note(EXPLAINING)

    def _update_kube(self) -> None:
        """Prints the source's notes, and renews the filter when a selected object has changed its addresses."""
        for note in self._source.notes():
            self._output.note(note)
        if self._kube:
            new = self._kube.new_filter()
            if new:
                self._source.set_filter(new)

    def _process_packet(self, packet: Packet) -> None:
        if self._is_limit_reached:
            return
        if self._kube:
            if not self._kube.wants(packet):
                return
            self._kube.attribute(packet)
        if self._connections:
            self._connections.feed(packet)
        # Findings do not depend on whether the packet is printed.
        found = self._findings.look(packet) if self._findings else []
        if not self._limits.drops_only or packet.outcome in BAD:
            self._print_packet(packet)
        for finding in found:
            self._output.finding(finding)

    def _print_packet(self, packet: Packet) -> None:
        summary = self.summary
        summary.packets += 1
        summary.incomplete += not packet.complete
        summary.outcomes[packet.outcome] = summary.outcomes.get(packet.outcome, 0) + 1
        if not (self._connections and self._connections.by_connection):
            self._output.packet(packet)
        self._is_limit_reached = bool(self._limits.count) and summary.packets >= self._limits.count
