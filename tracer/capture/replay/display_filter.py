# SPDX-License-Identifier: Apache-2.0
"""Filters assembled packets by the options of a run: for a capture, because its kernel is not available.

As live, a packet is selected when it, or its connection before or after address translation, meets every condition. Interfaces
and namespaces are compared by the names that they had in the recorded run.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tracer.model.endpoints import Endpoints
from tracer.model.filter import Network
from tracer.model.hop import RewriteHop
from tracer.model.namespace_name import NO_NETNS, Netns
from tracer.model.packet import Packet


@dataclass(frozen=True)
class DisplayFilter:
    """Selects packets.

    Attributes:
        ports: source or destination ports; empty = any.
        hosts: networks of the source or destination; empty = any.
        protocol: name in lower case; "" = any.
        family: 4 or 6; 0 = any.
        iface: name of an interface; "" = any.
        netns: a network namespace; NO_NETNS = any.
    """

    ports: tuple[int, ...] = ()
    hosts: tuple[Network, ...] = ()
    protocol: str = ""
    family: int = 0
    iface: str = ""
    netns: Netns = NO_NETNS

    def __call__(self, packet: Packet) -> bool:
        if self.protocol and packet.protocol.lower() != self.protocol:
            return False
        if self.family and packet.family != f"IPv{self.family}":
            return False
        if self.netns and not any(h.netns == self.netns for h in packet.hops):
            return False
        if self.iface and not any(self.iface in (h.in_iface, h.out_iface) for h in packet.hops):
            return False
        if not self.ports and not self.hosts:
            return True
        return any(self._matches(ends) for ends in all_endpoints(packet))

    def _matches(self, ends: Endpoints) -> bool:
        if self.ports and ends.sport not in self.ports and ends.dport not in self.ports:
            return False
        return not self.hosts or any(_within(a, network) for a in (ends.src, ends.dst) for network in self.hosts)


def all_endpoints(packet: Packet) -> Iterator[Endpoints]:
    """Yields the endpoints of all headers that the packet had, and both tuples of its connection."""
    yield packet.endpoints
    if packet.flow:
        yield packet.flow.orig
        yield packet.flow.reply
    for hop in packet.hops:
        if isinstance(hop, RewriteHop):
            yield hop.nat.before
            yield hop.nat.after


@lru_cache(1 << 16)
def _within(address: str, network: Network) -> bool:
    found = ipaddress.ip_address(address)
    return found.version == network.version and found in network
