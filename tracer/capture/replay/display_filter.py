# SPDX-License-Identifier: Apache-2.0
"""The options of a run as a filter of packets that have been made: for a capture, whose kernel is elsewhere.

A packet is wanted when it, or its connection before or after translation, meets every condition, as live. Interfaces and
namespaces go by the names they had.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tracer.model.filter import Network
from tracer.model.packet import Endpoints, Packet


@dataclass(frozen=True)
class DisplayFilter:
    """protocol: as packets have it in lower case, "" = any. family: 4, 6 or 0 = any. iface, netns: names, "" = any."""

    ports: tuple[int, ...] = ()
    hosts: tuple[Network, ...] = ()
    protocol: str = ""
    family: int = 0
    iface: str = ""
    netns: str = ""

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
        return any(self._fits(ends) for ends in tuples(packet))

    def _fits(self, ends: Endpoints) -> bool:
        if self.ports and ends.sport not in self.ports and ends.dport not in self.ports:
            return False
        return not self.hosts or any(_within(a, network) for a in (ends.src, ends.dst) for network in self.hosts)


def tuples(packet: Packet) -> Iterator[Endpoints]:
    """All headers that the packet had, and its connection's two."""
    yield packet.endpoints
    if packet.flow:
        yield packet.flow.orig
        yield packet.flow.reply
    for hop in packet.hops:
        if hop.nat:
            yield hop.nat.before
            yield hop.nat.after


@lru_cache(1 << 16)
def _within(address: str, network: Network) -> bool:
    found = ipaddress.ip_address(address)
    return found.version == network.version and found in network
