# SPDX-License-Identifier: Apache-2.0
"""The key of a connection, and the alias by which its packets are found where conntrack does not know them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tracer.model.endpoints import Endpoints
from tracer.model.namespace_name import NO_NETNS, Netns
from tracer.model.packet import Packet


@dataclass(frozen=True)
class ConnectionKey:
    """The key of a connection, as in conntrack. Packets of both directions have the same key.

    Attributes:
        protocol: Name of the protocol.
        orig: The original tuple.
        zone: The conntrack zone.
        netns: The namespace that tracks it; NO_NETNS = not tracked, identified by its endpoints alone.
    """

    protocol: str
    orig: Endpoints
    zone: int = 0
    netns: Netns = NO_NETNS

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


Alias: TypeAlias = tuple[Netns, str, str, int, str, int]
"""A pair of endpoints that a packet had in a namespace, before or after a translation of addresses: namespace, protocol, source
address and port, destination address and port. NO_NETNS = any namespace.

It is no key: connections in different conntrack zones can have the same alias. It is a flat tuple because packets have many.
"""
LOOPBACK = ("127.", "::1")
"""Beginnings of loopback addresses."""


def make_alias(netns: Netns, protocol: str, ends: Endpoints) -> Alias:
    return netns, protocol, ends.src, ends.sport, ends.dst, ends.dport


def reverse(alias: Alias) -> Alias:
    """The alias of a packet in the other direction."""
    netns, protocol, src, sport, dst, dport = alias
    return netns, protocol, dst, dport, src, sport


def anywhere(alias: Alias) -> Alias:
    """The same endpoints in any namespace."""
    return NO_NETNS, *alias[1:]


def is_loopback(alias: Alias) -> bool:
    """Whether one address is a loopback address: no such packet leaves its namespace."""
    return alias[2].startswith(LOOPBACK) or alias[4].startswith(LOOPBACK)
