# SPDX-License-Identifier: Apache-2.0
"""Names of ICMP errors, by protocol, type and code."""

from __future__ import annotations

from tracer.model.packet import Packet
from tracer.packets.hop_builder import ICMP6_UNREACHABLE, ICMP_UNREACHABLE

ERRORS: dict[tuple[str, int], dict[int, str]] = {
    ("ICMP", 3): ICMP_UNREACHABLE | {4: "fragmentation needed"}, ("ICMP", 11): {0: "time to live exceeded"},
    ("ICMPv6", 1): ICMP6_UNREACHABLE, ("ICMPv6", 2): {0: "packet too big"}, ("ICMPv6", 3): {0: "hop limit exceeded"},
}  # fmt: skip
"""By protocol and type: names of codes."""


HOUSEKEEPING = frozenset({130, 131, 132, 133, 134, 135, 136, 137, 143})
"""Types of ICMPv6 by which neighbours find each other: multicast listeners, routers, neighbours."""


def housekeeping(packet: Packet) -> bool:
    """Whether a packet is of neighbour discovery or its like, and no connection's."""
    return packet.protocol == "ICMPv6" and (packet.icmp or (0, 0))[0] in HOUSEKEEPING


def error(packet: Packet) -> str:
    """An ICMP error's own name, "ICMP icmp-host-unreachable"; "" for anything else."""
    kind, code = packet.icmp or (-1, 0)
    names = ERRORS.get((packet.protocol, kind))
    return f"{packet.protocol} {names.get(code, f'code {code}')}" if names else ""
