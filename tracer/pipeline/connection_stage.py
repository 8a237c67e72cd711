# SPDX-License-Identifier: Apache-2.0
"""Results that need several packets: the verdict of each SYN, and the timelines of connections."""

from __future__ import annotations

from collections.abc import Callable

from tracer.connections import conntrack_events
from tracer.connections.change_log import ChangeLog, ChangeSource
from tracer.connections.tracker import ConnectionTracker
from tracer.findings import Findings
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.model.evidence import Evidence
from tracer.model.handshake import HandshakeVerdict
from tracer.model.namespace_name import HOST, NO_NETNS, Netns
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.model.timeline import Timeline, TimelineEntry
from tracer.packets import icmp
from tracer.packets.outcome import BAD
from tracer.packets.shared_packet import SharedPacket
from tracer.pipeline.stage import Stage
from tracer.render.base import Output
from tracer.util.evictions import evictions

HOLD_NS = 2_000_000_000
"""Maximum time that a conntrack event waits for a packet of its connection, ns."""


class ConnectionStage(Stage):
    """Takes packets with their owners; writes verdicts and, if requested, timelines.

    Args:
        handshakes: gives each SYN its verdict.
        connections: collects timelines; None = output is by packet.
        changes: replaced rules and objects.
        findings: looks at verdicts.
        failures_only: writes only what went wrong.
        conntrack: events of conntrack entries.
        own_netns: gives the name of the namespace that `conntrack` listens in, which is this program's own.
    """

    def __init__(
        self,
        handshakes: HandshakeAnalyzer,
        connections: ConnectionTracker | None = None,
        changes: ChangeSource | None = None,
        findings: Findings | None = None,
        failures_only: bool = False,
        conntrack: conntrack_events.ConntrackListener | None = None,
        own_netns: Callable[[], Netns] = lambda: HOST,
    ) -> None:
        self._handshakes, self._connections, self._findings = handshakes, connections, findings
        self._failures_only = failures_only
        self._changes = changes or ChangeLog()
        self._conntrack, self._own_netns = conntrack or conntrack_events.EntryEvents(), own_netns
        self._expiry = conntrack_events.EntryExpiry()
        self._held: list[tuple[conntrack_events.EntryEvent, TimelineEntry]] = []

    def begin(self, output: Output) -> None:
        """Begins to listen to conntrack events, where that does not change the node."""
        reason = self._conntrack.listen(self._connections is not None)
        if reason and self._connections is not None:
            output.note(f"{reason[0].upper()}{reason[1:]}.")

    def feed(self, packet: Packet, output: Output) -> Packet:
        self._handshakes.feed(packet)
        if self._connections is not None and (packet.outcome in BAD or not icmp.is_neighbor_discovery(packet)):
            self._connections.feed(packet)
        return packet

    def repeat(self, packet: SharedPacket, output: Output) -> SharedPacket:
        if self._connections is not None or not self._handshakes.repeat(packet):
            self.feed(packet.packet(), output)
        return packet

    def add_loss(self, now: int, is_unexplained: bool = False) -> None:
        """Notes that packets were lost or left unexplained up to `now` (ns, CLOCK_MONOTONIC).

        For connections that are open then, a missing packet proves nothing.
        """
        self._handshakes.add_loss(now, is_unexplained)

    def end_batch(self, now: int, output: Output) -> None:
        """Writes the verdicts and timelines that are final at `now` (ns, CLOCK_MONOTONIC)."""
        self._write_verdicts(self._handshakes.expire(now), output)
        # They are read even if no timeline is written: a recording may need them.
        changes, entries = self._changes.read(), self._conntrack.read()
        if self._connections is not None:
            for change in changes:
                self._connections.add_change(change)
            netns = self._own_netns() if entries else NO_NETNS
            new = [event for at, data in entries for event in conntrack_events.parse(data, at, netns)]
            process = self._conntrack.process
            self._held += [(e, TimelineEntry(e.time, "conntrack", self._expiry.format(e, process))) for e in new]
            self._add_conntrack_entries(now)
            self._write_timelines(self._connections.expire(now), output)

    def flush(self, summary: RunSummary, output: Output) -> None:
        """Writes all that is left, and fills in the summary."""
        self._write_verdicts(self._handshakes.flush(), output)
        summary.causes = dict(self._handshakes.by_cause)
        summary.differences = self._handshakes.differences()
        if self._connections is not None:
            self._add_conntrack_entries(0)
            self._write_timelines(self._connections.flush(), output)
            summary.timelines = dict(self._connections.counts)
            if self._conntrack.lost:
                output.note(f"Events of conntrack were lost {self._conntrack.lost} times; timelines may lack some.")
            if self._changes.lost:
                output.note(f"{self._changes.lost} changes of rules and objects were lost; timelines may lack some.")

    def _write_verdicts(self, verdicts: list[HandshakeVerdict], output: Output) -> None:
        for verdict in verdicts:
            if self._connections is not None and self._add_to_timeline(verdict):
                pass
            elif not (self._failures_only and verdict.cause.good):
                output.syn(verdict)
            for finding in self._findings.look_syn(verdict, output.finding_again) if self._findings else ():
                output.finding(finding)

    def _add_to_timeline(self, verdict: HandshakeVerdict) -> bool:
        """Adds the verdict to its connection's timeline; False when the timeline is already closed."""
        assert self._connections is not None and verdict.attempt
        cause = verdict.cause
        text = cause.text + f" ({cause.evidence})" * (cause.evidence is Evidence.DERIVED)
        return self._connections.add_verdict(
            verdict.attempt.syn,
            TimelineEntry(verdict.attempt.began + verdict.after, "verdict", text, bad=not cause.good),
            cause.name,
        )

    def _add_conntrack_entries(self, now: int) -> None:
        """Adds conntrack events to timelines. Events may wait: a conntrack entry exists before its first packet is closed."""
        assert self._connections is not None
        waiting, self._held = self._held, []
        for event, entry in waiting:
            if not self._connections.add_entry(event.key, entry) and now - event.time < HOLD_NS:
                self._held.append((event, entry))
        surplus = max(0, len(self._held) - conntrack_events.MAX_EVENTS)
        evictions.add("conntrack events without a packet", surplus)
        del self._held[:surplus]

    def _write_timelines(self, timelines: list[Timeline], output: Output) -> None:
        assert self._connections is not None
        for timeline in sorted(timelines, key=lambda timeline: timeline.began):
            if not self._failures_only or timeline.troubled:
                output.timeline(timeline)
            self._connections.mark_written(timeline)

    def close(self) -> None:
        self._conntrack.close()
