# SPDX-License-Identifier: Apache-2.0
"""The key of a connection, and the alias by which its packets are found where conntrack does not know them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tracer.model.packet import Endpoints, Packet


@dataclass(frozen=True)
class ConnectionKey:
    """The key of a connection, as in conntrack. Packets of both directions have the same key.

    Attributes:
        protocol: Name of the protocol.
        orig: The original tuple.
        zone: The conntrack zone.
        netns: The namespace that tracks it; "" = not tracked, identified by its endpoints alone.
    """

    protocol: str
    orig: Endpoints
    zone: int = 0
    netns: str = ""

    @classmethod
    def of(cls, packet: Packet) -> ConnectionKey:
        """The packet's connection: conntrack's where it knows the packet, otherwise the packet's own endpoints."""
        flow = packet.flow
        if not flow:
            return cls(packet.protocol, packet.endpoints)
        return cls(packet.protocol, flow.orig, flow.zone, flow.netns)

    @property
    def is_tracked(self) -> bool:
        return bool(self.netns)


class Alias(NamedTuple):
    """A pair of endpoints that a packet had in a namespace, before or after a translation of addresses.

    It is no key: connections in different conntrack zones can have the same alias.

    Attributes:
        netns: The namespace; "" = any.
        protocol: Name of the protocol.
        ends: The endpoints, in the packet's direction.
    """

    netns: str
    protocol: str
    ends: Endpoints

    @property
    def reversed(self) -> Alias:
        return Alias(self.netns, self.protocol, self.ends.reversed)
