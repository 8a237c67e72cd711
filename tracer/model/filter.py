# SPDX-License-Identifier: Apache-2.0
"""What the user wants to see, in the user's words."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from tracer.errors import BadOption

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

PROTOCOLS = {"tcp": 6, "udp": 17, "icmp": 1, "icmpv6": 58, "sctp": 132}
MAX_HOSTS = 256


@dataclass(frozen=True)
class Filter:
    """A packet is wanted when it, or its connection's original or reply tuple, meets every condition that is set.

    protocol: IP protocol number, 0 = any. family: 4, 6 or 0 = any. netns: inode of a namespace, 0 = any. ifindex: of an
    interface in namespace if_netns, 0 = any. drops_only: only write events that end a packet.
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
    """An address or a CIDR; host bits may be set, as in an interface's own notation."""
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as e:
        raise BadOption(f"{text!r} is no IP address or CIDR.") from e
