# SPDX-License-Identifier: Apache-2.0
"""The sink of `ui`: the results of a run, in bounded queues, for a screen in another thread. It never waits."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.hop import Hop, trace_of
from tracer.model.joined_packet import JoinedPacket, ShownPacket
from tracer.model.loss import LEFT_OUT
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.packets.joined_views import last_packet
from tracer.packets.outcome import BAD
from tracer.packets.path_memo import PathMemo
from tracer.packets.shared_path import PathHops, SharedPath
from tracer.render.base import LostEvents, Output
from tracer.ui.node_feed import NodeFeed
from tracer.ui.node_results import NodeBegin, NodeFinding, NodeVerdict
from tracer.util.bounded_queue import BoundedQueue
from tracer.util.frozen import evolve

MOST_WAITING = 16_384
"""Most packets, and most SYN verdicts, that wait for the screen."""
MOST_FINDINGS = 1_000
"""Most findings that wait for the screen: as many as a run has."""
MOST_NOTES = 64
"""Most notes that are kept."""


@dataclass
class RunCounts:
    """What a run has given so far.

    Attributes:
        packets: Packets.
        bad: Packets that were dropped, rejected or refused.
        incomplete: Packets with lost events.
        unexplained: Packets that a recorded run had not explained; they are not among the other ones.
        findings: Findings.
        lost: Lost events.
        left_out: Packets that were left out because the ring buffer was nearly full.
        not_sent: Results that other nodes did not send, because this client was too slow.
    """

    packets: int = 0
    bad: int = 0
    incomplete: int = 0
    unexplained: int = 0
    findings: int = 0
    lost: int = 0
    left_out: int = 0
    not_sent: int = 0


class ScreenFeed(Output):
    """Takes the results of a run in its thread, and gives them to the screen in another one.

    Attributes:
        counts: Totals of the run so far.
        packets: Packets that wait. The oldest ones are evicted when they are too many.
        verdicts: SYN verdicts that wait.
        findings: Findings that wait.
        notes: The newest notes for the user.
        title: The options of the run.
        results: The results of `begin`.
        kernel: Release of the traced kernel; "" = the running one.
        nodes: What each node said when its run began, of a run on several nodes.
        totals: The summary; None = the run goes on.
        error: The error that ended the run; None = none.
        ended: Set when the run has ended.
    """

    def __init__(self, verbose: bool = False) -> None:
        super().__init__(verbose=verbose)
        self.counts = RunCounts()
        self.packets: BoundedQueue[ShownPacket] = BoundedQueue(MOST_WAITING, "packets that wait for ui")
        self.verdicts: BoundedQueue[NodeVerdict] = BoundedQueue(MOST_WAITING, "SYN verdicts that wait for ui")
        self.findings: BoundedQueue[NodeFinding] = BoundedQueue(MOST_FINDINGS, "findings that wait for ui")
        self.notes: BoundedQueue[str] = BoundedQueue(MOST_NOTES, "notes of ui")
        self.title = self.kernel = ""
        self.results: Sequence[CheckResult] = ()
        self.nodes: dict[str, NodeBegin] = {}
        self.totals: RunSummary | None = None
        self.error: BaseException | None = None
        self.ended = threading.Event()
        self._light = PathMemo(_light_path)

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        self.title, self.results, self.kernel = options_text, results, release
        self.note_limits(results)

    def for_node(self, node: str) -> NodeFeed:
        return NodeFeed(self, node)

    def begin_node(self, node: str, begin: NodeBegin) -> None:
        """The run of a node has begun."""
        self.title = self.title or begin.options
        self.nodes[node] = begin
        for result in begin.results:
            if result.state != "ok":
                self.note(f"{node}: {result.subject}: {result.text}")

    def packet(self, packet: Packet) -> None:
        self._count((packet,), packet)
        self.packets.append(self._without_rulesets(packet))

    def joined(self, joined: JoinedPacket) -> None:
        self._count([view.packet for view in joined.views], last_packet(joined))
        self.packets.append(joined)  # no ruleset comes from another node

    def _count(self, views: Sequence[Packet], last: Packet) -> None:
        """Counts a packet. views: it at each node; last: it as it ended."""
        counts = self.counts
        if all(view.unexplained for view in views):
            counts.unexplained += 1
        else:
            counts.packets += 1
            counts.bad += last.outcome in BAD
            counts.incomplete += not all(view.complete for view in views)

    def syn(self, verdict: HandshakeVerdict) -> None:
        self.verdicts.append(NodeVerdict("", verdict))

    def finding(self, finding: Finding) -> None:
        self.found(NodeFinding("", finding))

    def found(self, finding: NodeFinding) -> None:
        """A node has found something."""
        self.counts.findings += 1
        self.findings.append(finding)

    def lost(self, loss: LostEvents) -> None:
        super().lost(loss)
        self.count_lost(loss)

    def count_lost(self, loss: LostEvents) -> None:
        """Counts lost events, or packets that were left out."""
        if loss.probe == LEFT_OUT:
            self.counts.left_out += loss.count
        else:
            self.counts.lost += loss.count

    def note(self, text: str) -> None:
        self.notes.append(text)

    def summary(self, summary: RunSummary) -> None:
        """The run has ended: its findings in their final state."""
        self.findings.extend(NodeFinding("", finding) for finding in summary.findings)
        self.totals = summary

    def doctor(self, results: Sequence[CheckResult], status: int) -> None: ...

    def end(self, error: BaseException | None = None) -> None:
        """The run is over. error: The error that ended it; None = none."""
        self.error = error
        self.ended.set()

    def _without_rulesets(self, packet: Packet) -> Packet:
        """The packet without the snapshots of rules: a kept packet would keep all rules of its time."""
        hops = packet.hops
        if isinstance(hops, PathHops):
            return evolve(packet, hops=hops.on(self._light.of(packet)))
        if any((trace := trace_of(hop)) and trace.ruleset for hop in hops):
            return evolve(packet, hops=tuple(map(_light, hops)))
        return packet


def _light_path(packet: Packet) -> SharedPath:
    hops = packet.hops
    assert isinstance(hops, PathHops)
    return hops.path.with_hops([_light(pattern.hop) for pattern in hops.path.hops])


def _light(hop: Hop) -> Hop:
    """The hop without the snapshot of the rules."""
    trace = trace_of(hop)
    return evolve(hop, rule_trace=evolve(trace, ruleset=None)) if trace and trace.ruleset else hop
