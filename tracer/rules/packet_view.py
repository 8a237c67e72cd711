# SPDX-License-Identifier: Apache-2.0
"""The packet as rules see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tracer.events.table_trace import Shape


class ConnectionEnds(NamedTuple):
    """One direction of a connection, as conntrack has it: addresses of 16 bytes, and ports (or ICMP's id, type and code)."""

    src: bytes
    sport: int
    dst: bytes
    dport: int


class ConnectionView(NamedTuple):
    """A packet's connection as match conntrack sees it.

    Attributes:
        state: Bits of --ctstate (tracer/rules/iptables/conntrack.py). If there is no connection, nothing else is set.
        is_reply: Whether the packet goes in the reply direction.
        status: Bits of --ctstatus, None = not known.
        protocol: IP protocol number, None = not known.
        original: The original direction.
        reply: The reply direction, None = not known.
    """

    state: int
    is_reply: bool = False
    status: int | None = None
    protocol: int | None = None
    original: ConnectionEnds | None = None
    reply: ConnectionEnds | None = None

    @property
    def ends(self) -> tuple[ConnectionEnds | None, ConnectionEnds | None]:
        """Both directions, the original one first."""
        return self.original, self.reply


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
        connection: Its connection, None = not known.
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
    connection: ConnectionView | None = None
    changed: frozenset[str] = frozenset()

    @property
    def ports(self) -> tuple[int, ...]:
        """Its ports, source first, then those of its connection's original and reply direction; 0 = not known."""
        ends = self.connection.ends if self.connection else ()
        return self.sport, self.dport, *(port for each in ends for port in ((each.sport, each.dport) if each else (0, 0)))
