# SPDX-License-Identifier: Apache-2.0
"""The views of a packet of one node or of several ones: the first one, and the one that shows how the packet ended."""

from __future__ import annotations

from tracer.model.joined_packet import JoinedPacket, NodeView, ShownPacket
from tracer.model.packet import Packet
from tracer.packets.outcome import BAD


def ending_view(joined: JoinedPacket) -> NodeView:
    """The view that shows how a packet ended: the first one where it was dropped, rejected or refused, else the last one."""
    return next((view for view in joined.views if view.packet.outcome in BAD), joined.views[-1])


def first_packet(shown: ShownPacket) -> Packet:
    """The packet as the first node saw it."""
    return shown.views[0].packet if isinstance(shown, JoinedPacket) else shown


def first_time(shown: ShownPacket) -> int:
    """When the packet came to the first node, ns since the epoch, in the reference clock if it is known."""
    return shown.views[0].time if isinstance(shown, JoinedPacket) else shown.time


def last_packet(shown: ShownPacket) -> Packet:
    """The packet as it ended."""
    return ending_view(shown).packet if isinstance(shown, JoinedPacket) else shown
