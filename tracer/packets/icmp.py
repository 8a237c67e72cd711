# SPDX-License-Identifier: Apache-2.0
"""Names of ICMP errors, by protocol, type and code."""

from __future__ import annotations

from tracer.model.packet import Packet
from tracer.packets.hop_builder import ICMP6_UNREACHABLE, ICMP_UNREACHABLE

ERROR_NAMES: dict[tuple[str, int], dict[int, str]] = {
    ("ICMP", 3): ICMP_UNREACHABLE | {4: "fragmentation needed"}, ("ICMP", 11): {0: "time to live exceeded"},
    ("ICMPv6", 1): ICMP6_UNREACHABLE, ("ICMPv6", 2): {0: "packet too big"}, ("ICMPv6", 3): {0: "hop limit exceeded"},
}  # fmt: skip
"""Names of ICMP error codes, by protocol and type."""


NEIGHBOR_DISCOVERY_TYPES = frozenset({130, 131, 132, 133, 134, 135, 136, 137, 143})
"""ICMPv6 types of neighbour discovery and multicast listener discovery."""


def is_neighbor_discovery(packet: Packet) -> bool:
    """Whether a packet belongs to neighbour or multicast listener discovery, and so to no connection."""
    return packet.protocol == "ICMPv6" and (packet.icmp or (0, 0))[0] in NEIGHBOR_DISCOVERY_TYPES


def error_name(packet: Packet) -> str:
    """Name of an ICMP error, such as "ICMP icmp-host-unreachable"; "" for any other packet."""
    kind, code = packet.icmp or (-1, 0)
    names = ERROR_NAMES.get((packet.protocol, kind))
    return f"{packet.protocol} {names.get(code, f'code {code}')}" if names else ""
