# SPDX-License-Identifier: Apache-2.0
"""Sums the packets of each open connection, so that its row has its objects, its endpoint and its totals."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.analysis.packet_attribution import NOBODY, Attribution, attribution_of
from tracer.analysis.packet_decision import ENDS
from tracer.model.hop import RewriteHop
from tracer.model.packet import Outcome, Packet
from tracer.model.timeline import Timeline

_ARRIVED = frozenset({Outcome.DELIVERED, Outcome.FORWARDED, Outcome.SENT})


@dataclass(slots=True)
class ConnectionTotals:
    """What the packets of one connection say together.

    Attributes:
        timeline: The connection; None = it is still open.
        attribution: Its objects.
        endpoint: Address and port that were chosen to serve it, after DNAT; None = none was chosen.
        packets: Packets, both directions.
        reply_packets: Packets in the reply direction.
        length: Bytes of all packets.
        dropped: Packets that were dropped, rejected or refused.
        first: Time of the first packet, ns since the epoch.
        last: Time of the last packet's last hop, ns since the epoch.
    """

    timeline: Timeline | None = None
    attribution: Attribution = NOBODY
    endpoint: tuple[str, int] | None = None
    packets: int = 0
    reply_packets: int = 0
    length: int = 0
    dropped: int = 0
    first: int = 0
    last: int = 0

    def add(self, packet: Packet) -> None:
        """Adds a packet of the connection."""
        is_reply = packet.flow.is_reply if packet.flow else packet.tcp_flags == "SYN ACK"
        is_error = packet.protocol.startswith("ICMP") and packet.icmp is not None and self.packets > 0
        self.packets += 1
        self.reply_packets += is_reply
        self.length += packet.length
        self.dropped += packet.outcome in ENDS
        ended = packet.time + (packet.hops[-1].time - packet.hops[0].time if packet.hops else 0)
        self.first = min(self.first, packet.time) if self.first else packet.time
        self.last = max(self.last, ended)
        if is_error:
            return  # an ICMP error has the router's address, not the server's
        self.attribution = self.attribution.completed_by(attribution_of(packet))
        self.endpoint = self.endpoint or _endpoint(packet, is_reply)


def _endpoint(packet: Packet, is_reply: bool) -> tuple[str, int] | None:
    """The address and port that were chosen to serve the connection, as this packet shows them."""
    if packet.flow and (packet.flow.reply.src, packet.flow.reply.sport) != (packet.flow.orig.dst, packet.flow.orig.dport):
        return packet.flow.reply.src, packet.flow.reply.sport
    rewrites = [h.nat for h in packet.hops if isinstance(h, RewriteHop) and not h.clone]
    translated = next((nat.after for nat in reversed(rewrites) if nat.kind == "DNAT"), None)
    if translated:
        return translated.dst, translated.dport
    if is_reply:
        answers = next((nat.before for nat in rewrites if nat.kind == "reverse DNAT"), packet.endpoints)
        return answers.src, answers.sport
    return (packet.endpoints.dst, packet.endpoints.dport) if packet.outcome in _ARRIVED else None


class OpenConnections:
    """The totals of open connections. They are as many as the stage that numbers packets keeps open."""

    def __init__(self) -> None:
        self._open: dict[int, ConnectionTotals] = {}

    def __len__(self) -> int:
        return len(self._open)

    def feed(self, packet: Packet) -> None:
        """Takes a packet with the number of its connection."""
        if packet.connection:
            self._open.setdefault(packet.connection, ConnectionTotals()).add(packet)

    def close(self, timeline: Timeline) -> ConnectionTotals | None:
        """The totals of a connection that is over; None = none of its packets was taken."""
        totals = self._open.pop(timeline.number, None)
        if totals:
            totals.timeline = timeline
        return totals
