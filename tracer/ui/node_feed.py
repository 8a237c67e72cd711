# SPDX-License-Identifier: Apache-2.0
"""The results of one node of several, on their way to the feed of the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.joined_packet import JoinedPacket, NodeView
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.render.base import LostEvents, Output
from tracer.ui.node_results import NodeBegin, NodeFinding, NodeVerdict

if TYPE_CHECKING:
    from tracer.ui.feed import ScreenFeed


class NodeFeed(Output):
    """Gives what a node has found to the feed, with the node's name.

    Args:
        feed: The feed of all nodes.
        node: The node.
    """

    def __init__(self, feed: ScreenFeed, node: str) -> None:
        super().__init__(verbose=feed.verbose)
        self.node, self.has_nodes = node, True
        self._feed = feed
        self._offset: int | None = None

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        self._feed.begin_node(self.node, NodeBegin(options_text, results, release))

    def set_node_clock(self, offset: int) -> None:
        self._offset = offset

    def packet(self, packet: Packet) -> None:
        self._feed.joined(JoinedPacket((NodeView(self.node, packet, self._offset),)))

    def syn(self, verdict: HandshakeVerdict) -> None:
        self._feed.verdicts.append(NodeVerdict(self.node, verdict))

    def finding(self, finding: Finding) -> None:
        self._feed.found(NodeFinding(self.node, finding))

    def lost(self, loss: LostEvents) -> None:
        super().lost(loss)
        self._feed.count_lost(loss)

    def not_sent(self, frames: Mapping[str, int]) -> None:
        self._feed.counts.not_sent += sum(frames.values())

    def note(self, text: str) -> None:
        self._feed.note(f"{self.node}: {text}")

    def node_summary(self, summary: RunSummary) -> None:
        """The run of the node has ended: its findings in their final state."""
        self._feed.findings.extend(NodeFinding(self.node, finding) for finding in summary.findings)

    def summary(self, summary: RunSummary) -> None:
        """The summary is that of all nodes."""

    def doctor(self, results: Sequence[CheckResult], status: int) -> None: ...
