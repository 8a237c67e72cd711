# SPDX-License-Identifier: Apache-2.0
"""The sink of `top` for a run on several nodes: a packet that several nodes saw is counted once, what is missing by node."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from tracer.analysis.top.interval import Interval
from tracer.analysis.top.joined_syns import JoinedSyns
from tracer.analysis.top.packet_counter import TopOutput, View
from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.joined_packet import JoinedPacket, NodeView
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.render.base import LostEvents, Output


class NodesTopOutput(TopOutput):
    """Counts what the nodes of a run saw. Each of them writes to an output of its own (`for_node`).

    The arguments are the first ones of TopOutput.
    """

    def __init__(self, view: View, seconds: float = math.inf, out: TextIO | None = None, err: TextIO | None = None) -> None:
        super().__init__(view, seconds, out, err)
        self._syns = JoinedSyns()
        self._names: set[str] = set()
        self._unexplained: dict[str, int] = {}
        self._longest = 0.0

    def open(self) -> None:
        """Shows the view, before the first node has begun."""
        self._view.begin()
        self._began = time.monotonic_ns()

    def for_node(self, node: str) -> NodeTopOutput:
        return NodeTopOutput(self, node)

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        """The run is that of its nodes."""

    def joined(self, joined: JoinedPacket) -> None:
        self._syns.packet(joined)
        views = tuple(view for view in joined.views if not view.packet.unexplained)
        if len(views) == len(joined.views):
            self._counter.joined(joined)
        elif views:  # the summary counts the others as not explained
            self._counter.joined(JoinedPacket(views, (), joined.complete))

    def summary(self, summary: RunSummary) -> None:
        """All nodes have ended. If none has begun, there is nothing to show."""
        if not self._names:
            return
        for verdict, joined in self._syns.close():
            self._counter.joined_syn(verdict, joined)
        if math.isinf(self._seconds) and self._longest:
            summary.seconds = self._longest
        super().summary(summary)

    def _closed(self, seconds: float, unexplained: int = 0) -> Interval:
        by_node = self._unexplained if unexplained else {}
        return self._counter.close(seconds, self._losses, unexplained, len(self._names), by_node)

    # ---- what the nodes give ----

    def begin_node(self, node: str) -> None:
        """The run of a node has begun."""
        self._names.add(node)

    def end_node(self, node: str, summary: RunSummary) -> None:
        """The run of a node has ended."""
        self._longest = max(self._longest, summary.seconds)
        if summary.unexplained:
            self._unexplained[node] = summary.unexplained

    def syn_of(self, node: str, verdict: HandshakeVerdict) -> None:
        """A node has a verdict on a SYN."""
        self._counter.node_syn(node, verdict)
        self._syns.verdict(node, verdict, time.monotonic_ns())

    def lost_by(self, node: str, loss: LostEvents) -> None:
        """A node has lost events."""
        self._counter.lost(loss, node)

    def not_sent_by(self, node: str, count: int) -> None:
        """A node did not send results."""
        self._counter.not_sent(node, count)

    def end_batch(self, now: int) -> None:
        """A node has ended a batch. now: this machine's CLOCK_MONOTONIC, ns."""
        for verdict, joined in self._syns.take(now):
            self._counter.joined_syn(verdict, joined)
        super().end_batch(now)


class NodeTopOutput(Output):
    """The results of one node.

    Args:
        all_nodes: Counts them.
        node: The node.
    """

    def __init__(self, all_nodes: NodesTopOutput, node: str) -> None:
        super().__init__(all_nodes.out, all_nodes.err)
        self.node, self.has_nodes = node, True
        self._all_nodes = all_nodes
        self._offset: int | None = None

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        self._all_nodes.begin_node(self.node)
        self.note_limits(results)

    def set_node_clock(self, offset: int) -> None:
        self._offset = offset

    def packet(self, packet: Packet) -> None:
        self._all_nodes.joined(JoinedPacket((NodeView(self.node, packet, self._offset),)))

    def syn(self, verdict: HandshakeVerdict) -> None:
        self._all_nodes.syn_of(self.node, verdict)

    def lost(self, loss: LostEvents) -> None:
        super().lost(loss)
        self._all_nodes.lost_by(self.node, loss)

    def not_sent(self, frames: Mapping[str, int]) -> None:
        self._all_nodes.not_sent_by(self.node, sum(frames.values()))

    def finding(self, finding: Finding) -> None:
        self.note_finding(finding)

    def note(self, text: str) -> None:
        self._all_nodes.note(f"{self.node}: {text}")

    def end_batch(self, now: int) -> None:
        """The node's clock is another one: the intervals are those of this machine."""
        self._all_nodes.end_batch(time.monotonic_ns())

    def node_summary(self, summary: RunSummary) -> None:
        self._all_nodes.end_node(self.node, summary)

    def summary(self, summary: RunSummary) -> None:
        """The summary is that of all nodes."""

    def doctor(self, results: Sequence[CheckResult], status: int) -> None: ...
