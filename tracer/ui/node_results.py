# SPDX-License-Identifier: Apache-2.0
"""Results with the node that they come from, and what the screen needs of a packet of one node or of several."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from tracer.model.check import CheckResult
from tracer.model.connection import ConnectionKey
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.joined_packet import JoinedPacket, NodeView, ShownPacket
from tracer.model.packet import Packet


class NodeFinding(NamedTuple):
    """A finding. node: "" = the only node of the run, or not known."""

    node: str
    finding: Finding

    @property
    def key(self) -> tuple[str, str, tuple[object, ...]]:
        """Its identity: later findings with it show the same cause."""
        return self.node, self.finding.name, self.finding.key


class NodeVerdict(NamedTuple):
    """The verdict of a node on a SYN. node: "" = the only node of the run."""

    node: str
    verdict: HandshakeVerdict


class NodeBegin(NamedTuple):
    """What a node said when its run began.

    Attributes:
        options: The options of the run.
        results: What it cannot show.
        kernel: Release of its kernel.
    """

    options: str
    results: Sequence[CheckResult]
    kernel: str


def views_of(shown: ShownPacket) -> Sequence[NodeView]:
    """The views of a packet; that of the only node of a run has no name."""
    return shown.views if isinstance(shown, JoinedPacket) else (NodeView("", shown),)


def identity_of(shown: ShownPacket) -> Hashable:
    """What no other packet of the run has."""
    if not isinstance(shown, JoinedPacket):
        return shown.identity, shown.number
    first = shown.views[0]
    return first.node, first.packet.identity, first.packet.number


def connection_keys(shown: ShownPacket) -> Sequence[Hashable]:
    """What identifies the connection of a packet: on several nodes one key for each view.

    On one node it is the number of the connection; without it, as on several nodes, the connection in conntrack, or the
    endpoints.
    """
    if not isinstance(shown, JoinedPacket):
        return (shown.connection or ConnectionKey.of(shown),)
    return tuple(dict.fromkeys((view.node, _key(view.packet)) for view in shown.views))


def _key(packet: Packet) -> ConnectionKey:
    """The connection of a packet of another node, equal for both directions."""
    key = ConnectionKey.of(packet)
    ends = key.orig
    is_back = not packet.flow and (ends.src, ends.sport) > (ends.dst, ends.dport)
    return ConnectionKey(key.protocol, ends.reversed, key.zone, key.netns) if is_back else key
