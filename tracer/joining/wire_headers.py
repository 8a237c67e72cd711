# SPDX-License-Identifier: Apache-2.0
"""The header of a packet as it arrived at a node, and as it left the node: what another node can have in common with it."""

from __future__ import annotations

from typing import NamedTuple

from tracer.model.endpoints import Endpoints
from tracer.model.hop import HookHop, RewriteHop, nat_of
from tracer.model.namespace_name import is_host
from tracer.model.netfilter import Hook
from tracer.model.packet import Outcome, Packet
from tracer.packets.path_memo import PathMemo
from tracer.packets.shared_packet import hop_time

LOOPBACK = "lo"
"""The interface that no packet leaves a node by."""
PAYLOAD_BYTES = 32
"""Number of payload bytes that are compared, at most."""
_LEFT = (Outcome.FORWARDED, Outcome.SENT)


class WireHeader(NamedTuple):
    """A packet's header at the border of a node.

    Attributes:
        endpoints: Source and destination.
        iface: The interface.
        time: When it was seen, ns since the epoch by the node's clock.
    """

    endpoints: Endpoints
    iface: str
    time: int


class WireHeaders(NamedTuple):
    """A packet's headers at both borders of a node.

    Attributes:
        arrival: As it came in by an interface; None = the node made it, or its arrival was not seen.
        departure: As it left by an interface; None = it stayed, or was not seen to leave.
    """

    arrival: WireHeader | None
    departure: WireHeader | None


class _Borders(NamedTuple):
    """What all packets of one path have in common.

    Attributes:
        in_iface: Interface of the arrival; "" = none.
        out_iface: Interface of the departure; "" = none.
        last: Place of the hop that left by it.
        rewrite: Place of the last rewrite of the header; -1 = none.
    """

    in_iface: str
    out_iface: str
    last: int
    rewrite: int


def _borders(packet: Packet) -> _Borders:
    is_arriving, rewrite, last = not packet.continues, -1, -1
    first_hook = next((hop.hook for hop in packet.hops if not hop.clone), Hook.NONE)
    in_iface = out_iface = ""
    for at, hop in enumerate(packet.hops):
        if hop.clone:
            continue
        if is_arriving and hop.hook is first_hook:
            in_iface = hop.in_iface
        # A rewrite has no interface: that of the other hops of its hook counts.
        is_arriving = is_arriving and hop.hook is first_hook and isinstance(hop, RewriteHop) and not in_iface
        if isinstance(hop, RewriteHop):
            rewrite = at
        elif isinstance(hop, HookHop) and hop.verdict:
            last, out_iface = at, hop.out_iface if hop.hook is Hook.POSTROUTING else ""
    # The header of a packet that continues an earlier one is only known from a rewrite in this part.
    if packet.outcome not in _LEFT or out_iface == LOOPBACK or (packet.continues and rewrite < 0):
        out_iface = ""
    return _Borders("" if in_iface == LOOPBACK else in_iface, out_iface, last, rewrite)


_BORDERS = PathMemo(_borders)


def headers_of(packet: Packet) -> WireHeaders:
    """The headers with which a packet arrived at its node and left it."""
    borders = _BORDERS.of(packet)
    arrival = departure = None
    if borders.in_iface:
        arrival = WireHeader(packet.endpoints, borders.in_iface, packet.time)
    if borders.out_iface:
        ends = packet.endpoints
        if borders.rewrite >= 0 and (nat := nat_of(packet.hops[borders.rewrite])):
            ends = nat.after
        left = packet.time + hop_time(packet, borders.last) - hop_time(packet, 0)
        departure = WireHeader(ends, borders.out_iface, left)
    return WireHeaders(arrival, departure)


def departed_from_host(packet: Packet) -> WireHeader | None:
    """The header with which a packet left its node; None = it did not, or only left a pod."""
    left = headers_of(packet).departure
    if not left:
        return None
    last = next(hop for hop in reversed(packet.hops) if isinstance(hop, HookHop) and not hop.clone and hop.verdict)
    return left if last.hook is Hook.POSTROUTING and is_host(last.netns) else None


def payload_of(packet: Packet) -> bytes:
    """The first payload bytes of a UDP or ICMP packet, which no translation changes; empty = not recorded (--snaplen)."""
    raw = packet.raw
    if not raw:
        return b""
    is_icmp = packet.protocol.startswith("ICMP")
    if not is_icmp and packet.protocol != "UDP":
        return b""
    start = (raw[0] & 15) * 4 if raw[0] >> 4 == 4 else 40
    if raw[0] >> 4 == 6 and (len(raw) < 7 or raw[6] not in (17, 58)):
        return b""
    # An echo's identifier is translated like a port; its sequence number is not.
    start += 6 if is_icmp else 8
    return raw[start : start + PAYLOAD_BYTES]
