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
    """Selects a packet when its header, or its connection's original or reply tuple, meets every condition that is set.

    Attributes:
        ports: Wanted ports; empty = any.
        hosts: Wanted networks; empty = any.
        protocol: IP protocol number, 0 = any.
        family: IP version, 4 or 6; 0 = any.
        netns: Inode of a namespace, 0 = any.
        ifindex: Index of an interface in namespace if_netns, 0 = any.
        if_netns: Inode of the namespace of ifindex.
        drops_only: Only write events that end a packet.
    """

    ports: tuple[int, ...] = ()
    hosts: tuple[Network, ...] = ()
    protocol: int = 0
    family: int = 0
    netns: int = 0
    ifindex: int = 0
    if_netns: int = 0
    drops_only: bool = False

    def __post_init__(self) -> None:
        for port in self.ports:
            if not 0 < port < 65536:
                raise BadOption(f"Port {port} does not exist: ports go from 1 to 65535.")
        if len(self.hosts) > MAX_HOSTS:
            raise BadOption(f"{len(self.hosts)} --host options are too many: {MAX_HOSTS} at most.")


def parse_host(text: str) -> Network:
    """Parses an address or a CIDR; host bits may be set, as in the notation of an interface.

    Raises:
        BadOption: The text is neither.
    """
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as e:
        raise BadOption(f"{text!r} is no IP address or CIDR.") from e
