# SPDX-License-Identifier: Apache-2.0
"""What a run tells beyond single packets: each SYN's verdict, and the timelines of connections."""

from __future__ import annotations

from types import TracebackType

from tracer.connections import conntrack_events
from tracer.connections.change_log import ChangeLog
from tracer.connections.index import identity_of
from tracer.connections.tracker import ConnectionTracker
from tracer.findings import Findings
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.model.evidence import Evidence
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.model.timeline import ConnectionKey, Timeline, TimelineEntry
from tracer.packets import icmp
from tracer.packets.outcome import BAD
from tracer.render.base import Output

HOLD_NS = 2_000_000_000
"""So long an event of conntrack waits for a packet of its connection."""


class ConnectionStage:
    """Takes packets with their owners; writes verdicts, and timelines if they are asked for. A context manager.

    connections: None = by packet. quiet: only what went wrong.
    """

    def __init__(
        self,
        syns: HandshakeAnalyzer,
        connections: ConnectionTracker | None = None,
        changes: ChangeLog | None = None,
        findings: Findings | None = None,
        quiet: bool = False,
        entries: conntrack_events.ConntrackListener | None = None,
    ) -> None:
        self._syns, self._connections, self._findings, self._quiet = syns, connections, findings, quiet
        self._changes = changes or ChangeLog()
        self._entries = entries or conntrack_events.EntryEvents()
        self._ends = conntrack_events.EntryExpiry()
        self._held: list[tuple[conntrack_events.EntryEvent, TimelineEntry]] = []

    @property
    def by_connection(self) -> bool:
        return self._connections is not None

    def start(self, output: Output) -> None:
        """Begins to listen to conntrack, where that changes nothing."""
        why = self._entries.listen(self.by_connection)
        if why and self.by_connection:
            output.note(f"{why[0].upper()}{why[1:]}.")

    def feed(self, packet: Packet) -> None:
        """Takes a packet that is over."""
        self._syns.feed(packet)
        if self._connections is not None and (packet.outcome in BAD or not icmp.housekeeping(packet)):
            self._connections.feed(packet)

    def add_loss(self, now: int, unexplained: bool = False) -> None:
        """Something was lost by now (ns, CLOCK_MONOTONIC), or left unexplained: what is not seen of open connections proves
        nothing."""
        self._syns.add_loss(now, unexplained)

    def expire(self, now: int, output: Output) -> None:
        """Writes what can be told by now (ns, CLOCK_MONOTONIC)."""
        self._tell(self._syns.expire(now), output)
        # Also where nobody is told of them: they may be recorded.
        changes, entries = self._changes.read(), self._entries.read()
        if self._connections is not None:
            for change in changes:
                self._connections.changed(change)
            new = [event for at, data in entries for event in conntrack_events.parse(data, at)]
            self._held += [(e, TimelineEntry(e.time, "conntrack", self._ends.format(e, self._entries.process))) for e in new]
            self._note_entries(now)
            self._write(self._connections.expire(now), output)

    def flush(self, summary: RunSummary, output: Output) -> None:
        """Writes the rest; fills in the totals."""
        self._tell(self._syns.flush(), output)
        summary.causes = dict(self._syns.by_cause)
        summary.differences = self._syns.differences()
        if self._connections is not None:
            self._note_entries(0)
            self._write(self._connections.flush(), output)
            summary.timelines = dict(self._connections.counts)
            if self._entries.lost:
                output.note(f"Events of conntrack were lost {self._entries.lost} times; timelines may lack some.")

    def _tell(self, verdicts: list[HandshakeVerdict], output: Output) -> None:
        for verdict in verdicts:
            if self._connections is not None and self._on_timeline(verdict):
                pass
            elif not (self._quiet and verdict.cause.good):
                output.syn(verdict)
            for finding in self._findings.look_syn(verdict) if self._findings else ():
                output.finding(finding)

    def _on_timeline(self, verdict: HandshakeVerdict) -> bool:
        """Puts it on its connection's timeline, unless that has been told and forgotten."""
        assert self._connections is not None and verdict.attempt
        cause = verdict.cause
        text = cause.text + f" ({cause.evidence})" * (cause.evidence is Evidence.DERIVED)
        return self._connections.add_entry(
            identity_of(verdict.attempt.syn),
            TimelineEntry(verdict.attempt.began + verdict.after, "verdict", text, bad=not cause.good),
            cause.name,
        )

    def _note_entries(self, now: int) -> None:
        """An entry is there before its first packet's journey has ended, so its events wait."""
        assert self._connections is not None
        waiting, self._held = self._held, []
        for event, step in waiting:
            identities = (ConnectionKey(event.protocol, event.orig, event.zone, netns) for netns in ("node", ""))
            if not any(self._connections.add_entry(i, step) for i in identities) and now - event.time < HOLD_NS:
                self._held.append((event, step))
        del self._held[: -conntrack_events.KEPT]

    def _write(self, timelines: list[Timeline], output: Output) -> None:
        assert self._connections is not None
        for timeline in timelines:
            if not self._quiet or timeline.troubled:
                output.timeline(timeline)
            self._connections.written(timeline)

    def __enter__(self) -> ConnectionStage:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self._entries.close()
