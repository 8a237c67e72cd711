# SPDX-License-Identifier: Apache-2.0
"""Which view of a packet of several nodes is asked first for the row of the packet: the first one that knows it gives it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracer.model.joined_packet import JoinedPacket, NodeView
from tracer.packets.joined_views import ending_view, first_packet
from tracer.packets.outcome import BAD

ViewOrder = Callable[[JoinedPacket], Sequence[NodeView]]


def deciding_first(joined: JoinedPacket) -> Sequence[NodeView]:
    """The view where the packet was dropped, then all in the order of its way."""
    ending = ending_view(joined)
    return (ending, *joined.views) if ending.packet.outcome in BAD else joined.views


def server_first(joined: JoinedPacket) -> Sequence[NodeView]:
    """The views from the server's end on."""
    return joined.views if _is_answer(joined) else joined.views[::-1]


def asker_first(joined: JoinedPacket) -> Sequence[NodeView]:
    """The views from the client's end on."""
    return joined.views[::-1] if _is_answer(joined) else joined.views


def _is_answer(joined: JoinedPacket) -> bool:
    packet = first_packet(joined)
    return packet.flow.is_reply if packet.flow else packet.tcp_flags == "SYN ACK"
