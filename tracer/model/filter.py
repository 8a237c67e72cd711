# SPDX-License-Identifier: Apache-2.0
"""The filter that the user's options describe."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from tracer.errors import BadOption

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

PROTOCOLS = {"tcp": 6, "udp": 17, "icmp": 1, "icmpv6": 58, "sctp": 132}
MAX_HOSTS = 256


@dataclass(frozen=True)
class Filter:
    """Selects packets in the kernel.

    A packet is selected when it meets every condition that is set. A condition on ports or hosts is met by the packet's header,
    or by its connection's original or reply tuple. Source and destination are those of the packet's direction.

    Attributes:
        ports: Wanted ports of either end; empty = any.
        hosts: Wanted networks of either end; empty = any.
        protocol: IP protocol number, 0 = any.
        family: IP version, 4 or 6; 0 = any.
        netns: Inode of a namespace, 0 = any.
        ifindex: Index of an interface in namespace if_netns, 0 = any.
        if_netns: Inode of the namespace of ifindex.
        drops_only: Only write events that end a packet.
        source_ports: Wanted source ports; empty = any.
        destination_ports: Wanted destination ports; empty = any.
        excluded_ports: Ports that neither end may have.
        sources: Wanted networks of the source; empty = any.
        destinations: Wanted networks of the destination; empty = any.
        excluded_hosts: Networks that neither end may be in.
        tcp_flags: Wanted values of the byte of TCP flags; empty = any packet, also of other protocols.
    """

    ports: tuple[int, ...] = ()
    hosts: tuple[Network, ...] = ()
    protocol: int = 0
    family: int = 0
    netns: int = 0
    ifindex: int = 0
    if_netns: int = 0
    drops_only: bool = False
    source_ports: tuple[int, ...] = ()
    destination_ports: tuple[int, ...] = ()
    excluded_ports: tuple[int, ...] = ()
    sources: tuple[Network, ...] = ()
    destinations: tuple[Network, ...] = ()
    excluded_hosts: tuple[Network, ...] = ()
    tcp_flags: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for ports in self.ports_by_role:
            for port in ports:
                if not 0 < port < 65536:
                    raise BadOption(f"Port {port} does not exist: ports go from 1 to 65535.")
        count = sum(map(len, self.hosts_by_role))
        if count > MAX_HOSTS:
            raise BadOption(f"{count} --host options are too many: {MAX_HOSTS} at most, with --src, --dst and --not-host.")

    @property
    def ports_by_role(self) -> tuple[tuple[int, ...], ...]:
        """Ports in the order of `enum role` in bpf/records/filter.h: either end, source, destination, excluded."""
        return self.ports, self.source_ports, self.destination_ports, self.excluded_ports

    @property
    def hosts_by_role(self) -> tuple[tuple[Network, ...], ...]:
        """Networks in the same order."""
        return self.hosts, self.sources, self.destinations, self.excluded_hosts

    @property
    def is_one_sided(self) -> bool:
        """Whether the packets of one direction of a connection may be selected without those of the other one."""
        one_sided = (self.source_ports, self.destination_ports, self.sources, self.destinations, self.tcp_flags)
        return any(one_sided)


def parse_host(text: str) -> Network:
    """Parses an address or a CIDR; host bits may be set, as in the notation of an interface.

    Raises:
        BadOption: The text is neither.
    """
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as e:
        raise BadOption(f"{text!r} is no IP address or CIDR.") from e
