# SPDX-License-Identifier: Apache-2.0
"""The aliases of a packet: the endpoints that it had in each namespace on its path, and those of its connection."""

from __future__ import annotations

from typing import NamedTuple

from tracer.model.connection import Alias, anywhere, make_alias, reverse
from tracer.model.hop import RewriteHop
from tracer.model.packet import Packet
from tracer.packets.path_memo import PathMemo
from tracer.packets.shared_packet import AnyPacket, SharedPacket
from tracer.packets.shared_path import Ports, place_of, shared_hops


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


class Aliases:
    """The aliases of many packets; those of a shared path are found once, and get the ports of each packet."""

    def __init__(self) -> None:
        self._patterns = PathMemo(_patterns)

    def of(self, packet: AnyPacket) -> dict[Alias, None]:
        """All aliases of a packet in the packet's own direction, in the order of its path; conntrack's tuples last."""
        if isinstance(packet, SharedPacket):
            ports = packet.way.ports
        elif hops := shared_hops(packet):
            ports = hops.ports
        else:
            return aliases_of(packet)
        return {pattern.fill(ports): None for pattern in self._patterns.of(packet)}

    def ends(self, packet: AnyPacket) -> set[Alias]:
        """The aliases of a packet without their namespaces, in the packet's own direction."""
        return {anywhere(alias) for alias in self.of(packet)}


class _Pattern(NamedTuple):
    """An alias, and which of its ports are chosen ones.

    Attributes:
        alias: The alias of the packet that was explained.
        source: Place of the source port among the chosen ports, -1 = not chosen.
        destination: Place of the destination port among the chosen ports, -1 = not chosen.
    """

    alias: Alias
    source: int
    destination: int

    def fill(self, ports: Ports) -> Alias:
        """The alias of a packet with these chosen ports."""
        netns, protocol, src, sport, dst, dport = self.alias
        source, destination = self.source, self.destination
        return (
            netns, protocol, src, sport if source < 0 else ports[source], dst, dport if destination < 0 else ports[destination],
        )  # fmt: skip


def _patterns(packet: Packet) -> tuple[_Pattern, ...]:
    hops = shared_hops(packet)
    assert hops
    ports = hops.ports
    return tuple(_Pattern(alias, place_of(alias[3], ports), place_of(alias[5], ports)) for alias in aliases_of(packet))
