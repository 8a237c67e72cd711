# SPDX-License-Identifier: Apache-2.0
"""The packet as rules see it."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.events.table_trace import Shape


@dataclass(frozen=True)
class PacketView:
    """The fields of a packet that are known while it is in a table.

    Attributes:
        family: "ip" or "ip6".
        src: Source address as a number.
        dst: Destination address as a number.
        in_face: Input interface name as the kernel has it, 16 bytes as a number.
        out_face: Output interface name, likewise.
        protocol: IP protocol number.
        fragment: Whether it is a fragment other than the first.
        sport: Source port, 0 for ICMP.
        dport: Destination port, 0 for ICMP.
        icmp: ICMP type and code.
        tcp_flags: TCP flags.
        mark: The packet's mark when the table began, None = not known.
        shape: How much of the transport header is there.
        changed: Fields that a target has changed to an unknown value: "src", "dst", "tcp_flags".
    """

    family: str
    src: int
    dst: int
    in_face: int
    out_face: int
    protocol: int
    fragment: bool = False
    sport: int = 0
    dport: int = 0
    icmp: tuple[int, int] = (0, 0)
    tcp_flags: int = 0
    mark: int | None = 0
    shape: int = Shape.SHAPE_WHOLE
    changed: frozenset[str] = frozenset()
