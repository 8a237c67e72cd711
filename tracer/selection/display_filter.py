# SPDX-License-Identifier: Apache-2.0
"""Conditions on assembled packets: all of them for a capture, because its kernel is not available; live, those that the kernel
does not evaluate for the whole packet.

As in the kernel, a condition on ports or hosts is met by any header that the packet had, or by its connection before or after
address translation. Interfaces and namespaces are compared by the names that they had in the recorded run.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from tracer.model.directed_endpoints import directed_endpoints
from tracer.model.filter import Network
from tracer.model.hop import SocketHop
from tracer.model.namespace_name import NO_NETNS, Netns
from tracer.model.packet import Packet
from tracer.model.tcp_flags import flags_value
from tracer.selection.pcap_expression import PcapExpression


@dataclass(frozen=True)
class DisplayFilter:
    """Selects a packet that meets every condition that is set.

    Attributes:
        ports: source or destination ports; empty = any.
        hosts: networks of the source or destination; empty = any.
        protocol: name in lower case; "" = any.
        family: 4 or 6; 0 = any.
        iface: name of an interface; "" = any.
        netns: a network namespace; NO_NETNS = any.
        source_ports: source ports; empty = any.
        destination_ports: destination ports; empty = any.
        excluded_ports: ports that neither end may have.
        sources: networks of the source; empty = any.
        destinations: networks of the destination; empty = any.
        excluded_hosts: networks that neither end may be in.
        tcp_flags: values of the byte of TCP flags; empty = any.
        pids: processes of sockets that the packet reached; empty = any.
        commands: names of such processes; empty = any.
        expression: a pcap-filter expression; None = none.
    """

    ports: Collection[int] = frozenset()
    hosts: tuple[Network, ...] = ()
    protocol: str = ""
    family: int = 0
    iface: str = ""
    netns: Netns = NO_NETNS
    source_ports: Collection[int] = frozenset()
    destination_ports: Collection[int] = frozenset()
    excluded_ports: Collection[int] = frozenset()
    sources: tuple[Network, ...] = ()
    destinations: tuple[Network, ...] = ()
    excluded_hosts: tuple[Network, ...] = ()
    tcp_flags: frozenset[int] = frozenset()
    pids: frozenset[int] = frozenset()
    commands: frozenset[str] = frozenset()
    expression: PcapExpression | None = None

    @property
    def is_one_sided(self) -> bool:
        """Whether the packets of one direction of a connection may be selected without those of the other one."""
        ends = self.source_ports, self.destination_ports, self.sources, self.destinations
        return any(ends) or any((self.tcp_flags, self.pids, self.commands, self.expression))

    def __call__(self, packet: Packet) -> bool:
        if self.protocol and packet.protocol.lower() != self.protocol:
            return False
        if self.family and packet.family != f"IPv{self.family}":
            return False
        if self.tcp_flags and (packet.protocol != "TCP" or flags_value(packet.tcp_flags) not in self.tcp_flags):
            return False
        if self.expression and not self.expression(packet):
            return False
        if self.netns and not any(h.netns == self.netns for h in packet.hops):
            return False
        if self.iface and not any(self.iface in (h.in_iface, h.out_iface) for h in packet.hops):
            return False
        return self._matches_process(packet) and self._matches_ends(packet)

    def _matches_process(self, packet: Packet) -> bool:
        if not self.pids and not self.commands:
            return True
        sockets = [h.socket for h in packet.hops if isinstance(h, SocketHop)]
        return (not self.pids or any(s.pid in self.pids for s in sockets)) and (
            not self.commands or any(s.command in self.commands for s in sockets)
        )

    def _matches_ends(self, packet: Packet) -> bool:
        if not self._has_ends:
            return True
        ends = set(directed_endpoints(packet))
        sport, dport = {each.sport for each in ends}, {each.dport for each in ends}
        src, dst = {each.src for each in ends}, {each.dst for each in ends}
        return (
            _is_met(self.ports, sport | dport)
            and _is_met(self.source_ports, sport)
            and _is_met(self.destination_ports, dport)
            and _is_within(self.hosts, src | dst)
            and _is_within(self.sources, src)
            and _is_within(self.destinations, dst)
            and not (self.excluded_ports and _is_met(self.excluded_ports, sport | dport))
            and not (self.excluded_hosts and _is_within(self.excluded_hosts, src | dst))
        )

    @property
    def _has_ends(self) -> bool:
        """Whether there is a condition on ports or hosts."""
        return bool(
            self.ports or self.hosts or self.source_ports or self.destination_ports or self.excluded_ports
            or self.sources or self.destinations or self.excluded_hosts
        )  # fmt: skip


def _is_met(wanted: Collection[int], found: set[int]) -> bool:
    return not wanted or any(port in wanted for port in found)


def _is_within(wanted: tuple[Network, ...], found: set[str]) -> bool:
    return not wanted or any(_within(address, network) for address in found for network in wanted)


@lru_cache(1 << 16)
def _within(address: str, network: Network) -> bool:
    found = ipaddress.ip_address(address)
    return found.version == network.version and found in network
