# SPDX-License-Identifier: Apache-2.0
"""The packet as the rules see it."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.events.table_trace import Shape


@dataclass(frozen=True)
class PacketView:
    """What is known of the packet while it was in the table.

    family: "ip" or "ip6". Addresses as numbers; in_face, out_face: interface names as the kernel has them, 16 bytes as a
    number. fragment: not the first one. sport, dport: of ICMP the type and code are icmp. mark: when the table began, None =
    not known. shape: how much of the transport header is there. changed: what a target has changed to a value that is not
    known, "src", "dst", "tcp_flags".
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
