# SPDX-License-Identifier: Apache-2.0
"""What packets of all nodes pass on their way to the output: nothing, or the joining of one packet's views."""

from __future__ import annotations

from typing import Protocol

from tracer.model.joined_packet import JoinedPacket, NodeView


class PacketStage(Protocol):
    """Takes views of packets, and gives joined packets."""

    def feed(self, view: NodeView) -> None:
        """A node has seen a packet."""

    def note_loss(self, node: str, since: int, until: int) -> None:
        """A node has lost packets between two times, ns, of the reference clock."""

    def take(self, horizon: int) -> list[JoinedPacket]:
        """Packets of which no further view comes. horizon: all views up to this time have come, ns, of the reference clock."""


class SingleViews:
    """Gives each view as a packet of its own."""

    def __init__(self) -> None:
        self._views: list[JoinedPacket] = []

    def feed(self, view: NodeView) -> None:
        self._views.append(JoinedPacket((view,)))

    def note_loss(self, node: str, since: int, until: int) -> None:
        return

    def take(self, horizon: int) -> list[JoinedPacket]:
        views, self._views = self._views, []
        return views
