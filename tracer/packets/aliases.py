# SPDX-License-Identifier: Apache-2.0
"""The aliases of a packet: the endpoints that it had in each namespace on its path, and those of its connection."""

from __future__ import annotations

from tracer.model.connection import Alias
from tracer.model.packet import Endpoints, Packet


def aliases_of(packet: Packet) -> dict[Alias, None]:
    """All aliases of a packet in the packet's own direction, in the order of its path; conntrack's tuples last."""
    protocol, netns, ends = packet.protocol, packet.netns, packet.endpoints
    found: dict[Alias, None] = {Alias(netns, protocol, ends): None}
    for hop in packet.hops:
        if hop.nat:
            found[Alias(hop.netns, protocol, hop.nat.before)] = None
            found[Alias(hop.netns, protocol, hop.nat.after)] = None
            if not hop.clone:
                netns, ends = hop.netns, hop.nat.after
        elif hop.netns != netns and not hop.clone:
            netns = hop.netns
            found[Alias(netns, protocol, ends)] = None
    flow = packet.flow
    if flow and not protocol.startswith("ICMP"):
        orig, reply = (flow.reply, flow.orig.reversed) if flow.is_reply else (flow.orig, flow.reply.reversed)
        found[Alias(flow.netns, protocol, orig)] = None
        found[Alias(flow.netns, protocol, reply)] = None
    return found


def ends_of(packet: Packet) -> set[Endpoints]:
    """All endpoints that a packet had on its path, and those of its connection, in the packet's own direction."""
    return {alias.ends for alias in aliases_of(packet)}
