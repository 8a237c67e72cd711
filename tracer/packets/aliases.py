# SPDX-License-Identifier: Apache-2.0
"""The aliases of a packet: the endpoints that it had in each namespace on its path, and those of its connection."""

from __future__ import annotations

from tracer.model.connection import Alias, anywhere, make_alias, reverse
from tracer.model.hop import RewriteHop
from tracer.model.packet import Packet


def aliases_of(packet: Packet) -> dict[Alias, None]:
    """All aliases of a packet in the packet's own direction, in the order of its path; conntrack's tuples last."""
    protocol, netns, ends = packet.protocol, packet.netns, packet.endpoints
    found = {make_alias(netns, protocol, ends): None}
    for hop in packet.hops:
        if isinstance(hop, RewriteHop):
            found[make_alias(hop.netns, protocol, hop.nat.before)] = None
            found[make_alias(hop.netns, protocol, hop.nat.after)] = None
            if not hop.clone:
                netns, ends = hop.netns, hop.nat.after
        elif hop.netns != netns and not hop.clone:
            netns = hop.netns
            found[make_alias(netns, protocol, ends)] = None
    flow = packet.flow
    if flow and not protocol.startswith("ICMP"):
        orig, reply = make_alias(flow.netns, protocol, flow.orig), make_alias(flow.netns, protocol, flow.reply)
        found[reverse(orig) if flow.is_reply else orig] = None
        found[reply if flow.is_reply else reverse(reply)] = None
    return found


def ends_of(packet: Packet) -> set[Alias]:
    """The aliases of a packet without their namespaces, in the packet's own direction."""
    return {anywhere(alias) for alias in aliases_of(packet)}
