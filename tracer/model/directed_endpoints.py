# SPDX-License-Identifier: Apache-2.0
"""The sources and destinations that a packet had on its way."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.model.endpoints import Endpoints
from tracer.model.hop import RewriteHop
from tracer.model.packet import Packet


def directed_endpoints(packet: Packet) -> Iterator[Endpoints]:
    """Yields the endpoints of all headers that the packet had, and both tuples of its connection, in the packet's direction."""
    yield packet.endpoints
    if packet.flow:
        flow = packet.flow
        yield flow.orig.reversed if flow.is_reply else flow.orig
        yield flow.reply if flow.is_reply else flow.reply.reversed
    for hop in packet.hops:
        if isinstance(hop, RewriteHop):
            yield hop.nat.before
            yield hop.nat.after
