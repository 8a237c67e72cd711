# SPDX-License-Identifier: Apache-2.0
"""One run of the tracer: probes on, batches in, packets out, until something says stop."""

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
from tracer.packets.assembler import CHUNK_PACKETS, PacketAssembler
from tracer.packets.outcome import BAD
from tracer.pipeline.backlog import Backlog
from tracer.pipeline.correlation import ConnectionStage
from tracer.pipeline.shutdown import StopRequest
from tracer.pipeline.source import Batch, EventSource
from tracer.render.base import Output

POLL_SECONDS = 0.05
RULES_SECONDS = 5.0
"""How long the end of a run may wait for rules that are being read."""
EXPLAINING = "Explaining what was seen; Ctrl-C again ends at once."


@dataclass(frozen=True)
class RunLimits:
    """When a run ends by itself. count: packets, 0 = no limit. seconds: 0 = no limit."""

    count: int = 0
    seconds: float = 0
    drops_only: bool = False


class Run:
    """Joins a source, the journeys and an output; and Kubernetes' names and what they let find, if there are any."""

    def __init__(
        self,
        source: EventSource,
        assembler: PacketAssembler,
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
        self._full = self._noted = False
        self._backlog = Backlog()

    def begin(self) -> None:
        """The probes are on, and packets come from now on."""
        if self._connections:
            self._connections.start(self._output)

    def follow(self, stop: StopRequest, command: subprocess.Popen[bytes] | None = None) -> None:
        """Prints packets until stopped, a limit is reached, or the command has ended; then prints what is left.

        What there was no time for, once it was stopped, is counted in totals.unexplained.
        """
        self._stop, began = stop, time.monotonic()
        while not (stop.asked or self._full):
            if self._limits.seconds and time.monotonic() - began >= self._limits.seconds:
                break
            if command and command.poll() is not None:
                time.sleep(2 * POLL_SECONDS)
                break
            time.sleep(POLL_SECONDS)
            self._read()
        last = time.monotonic() + RULES_SECONDS
        while self._assembler.is_waiting_for_rules and not self._full and time.monotonic() < last and not stop.late:
            time.sleep(POLL_SECONDS)
            self._read()
        self._read(last=True)
        self._finish(time.monotonic() - began)

    def replay(self, batches: Iterable[Batch], stop: StopRequest, seconds: float | None = None, early: bool = False) -> None:
        """Prints the packets of turns that were recorded.

        seconds: how long that run took, None = as long as its turns. early: ends at the limit, as the recorded run did not.
        """
        self._stop, began, turn = stop, 0, Batch(0, record.NOTHING)
        for turn in batches:
            began = began or turn.now
            self._process(turn)
            if stop.asked or (early and self._full):
                break
        if not turn.last:
            self._process(Batch(turn.now, record.NOTHING, last=True))
        self._finish((turn.now - began) / 1e9 if seconds is None else seconds)
        if not (early and self._full):
            self._explain_backlog()

    def _explain_backlog(self) -> None:
        """Prints what the recorded run had not explained: no part of its totals, findings, SYNs and timelines."""
        for packet in self._backlog.packets(self._assembler):
            if self._stop.asked:
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
        with self._still():
            self._process(self._source.read(last))

    def _still(self) -> AbstractContextManager[object]:
        """Within a turn the objects of Kubernetes do not change: all its packets are explained by the same."""
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
            self._print(packet)
        unexplained = self._backlog.count(self._assembler)
        if batch.last:
            self.summary.unexplained = unexplained
        if unexplained and self._connections:
            self._connections.add_loss(batch.now, unexplained=True)
        if self._connections:
            self._connections.expire(batch.now, self._output)
        self.summary.events, self.summary.unaddressed = self._assembler.events, self._assembler.unaddressed
        self._ask_kube()

    def _packets(self, batch: Batch) -> Iterator[Packet]:
        """Those that are over, as long as there is time for them; in a replay, those that the run had time for."""
        chunks, taken = self._assembler.chunks(None if batch.last else batch.now), 0
        while not self._backlog.evidence:
            open_before = self._assembler.open
            if self._stop.late or taken == batch.explained:
                if open_before:
                    self._backlog.begin(Evidence.OBSERVED)
                    self._source.mark_unexplained(taken)
                return
            chunk = next(chunks, None)
            if chunk is None:
                return
            if self._source.was_unexplained():
                self._backlog.begin(Evidence.DERIVED, chunk, open_before - self._assembler.open)
                return
            taken += 1
            yield from chunk
            self._source.poll_losses()
            if self._stop.asked and self._assembler.open > CHUNK_PACKETS and not self._noted:
                self._noted = True
                self._output.note(EXPLAINING)

    def _ask_kube(self) -> None:
        """Says what it has to say, and follows an object whose addresses have changed."""
        for note in self._source.notes():
            self._output.note(note)
        if self._kube:
            new = self._kube.new_filter()
            if new:
                self._source.set_filter(new)

    def _print(self, packet: Packet) -> None:
        if self._full:
            return
        if self._kube:
            if not self._kube.wants(packet):
                return
            self._kube.attribute(packet)
        if self._connections:
            self._connections.feed(packet)
        # What a packet shows does not depend on whether it is printed.
        found = self._findings.look(packet) if self._findings else []
        if not self._limits.drops_only or packet.outcome in BAD:
            self._show(packet)
        for finding in found:
            self._output.finding(finding)

    def _show(self, packet: Packet) -> None:
        totals = self.summary
        totals.packets += 1
        totals.incomplete += not packet.complete
        totals.outcomes[packet.outcome] = totals.outcomes.get(packet.outcome, 0) + 1
        if not (self._connections and self._connections.by_connection):
            self._output.packet(packet)
        self._full = bool(self._limits.count) and totals.packets >= self._limits.count
