# SPDX-License-Identifier: Apache-2.0
"""Packets that came to nodes and have no certain departure: each of them may be one that seems to be lost.

A packet can look different where it comes: merged with others (GRO), divided, in fragments, with addresses or an identification
that a machine between the nodes changed. So what is compared here is less than what joins two views.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from enum import Enum
from typing import NamedTuple

from tracer.joining.join_groups import IPV4_HEADER, IPV6_HEADER, SMALL_PAYLOAD, TCP_HEADER
from tracer.joining.wire_headers import WireHeader
from tracer.model.endpoints import Endpoints
from tracer.model.joined_packet import Certainty, JoinedPacket, JoinKey, NodeView
from tracer.model.packet import Outcome, Packet
from tracer.util.evictions import evictions

MOST_SEEN = 1 << 17
"""Most packets that are kept, of all nodes."""
KEPT_NS = 60_000_000_000
"""Time for which a packet is kept, ns."""
MERGED_AT_MOST = 64
"""Most segments that a network card or the kernel merges into one."""
_SEQUENCES, _IDENTS = 1 << 32, 1 << 16


class KnownDeparture(Enum):
    """What is known of the departure of a packet that came, if it is not certain which one it is."""

    NOTHING = 0
    PARTLY = 1
    """It is merged from several that left another node, or one of those that one was divided into."""
    ONE_OF_SEVERAL = 2
    """It has the header of departures that were not told apart."""


class PacketHeader(NamedTuple):
    """What two views of one packet are compared by. A packet itself, with its hops, takes ten times as much memory."""

    family: str
    protocol: str
    endpoints: Endpoints
    seq: int
    ident: int
    length: int

    @classmethod
    def of(cls, packet: Packet) -> PacketHeader:
        return cls(packet.family, packet.protocol, packet.endpoints, packet.seq, packet.ident, packet.length)


class SeenPacket(NamedTuple):
    """A packet at a node.

    Attributes:
        node: The node.
        time: When it was first seen, ns, of the reference clock.
        error: Largest error of the time, ns.
        header: Its header.
        known: What is known of its departure.
        ended: The node did not pass it on.
    """

    node: str
    time: int
    error: int
    header: PacketHeader
    known: KnownDeparture
    ended: bool


class SeenPackets:
    """The packets of all nodes that may be one that seems to be lost.

    Attributes:
        forgotten: Time of the newest packet that was given up for lack of room, ns; 0 = none.
    """

    def __init__(self) -> None:
        self._order: deque[tuple[SeenPacket, tuple[Hashable, ...]]] = deque()
        self._by_key: dict[Hashable, deque[SeenPacket]] = {}
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._order)

    def add(self, joined: JoinedPacket, at: int, is_own: bool) -> None:
        """Takes the view number `at` of a packet, unless it is certain which packet of another node it is.

        is_own: The source is at this node, so no other node has sent it: only its end is of interest.
        """
        view, known = joined.views[at], KnownDeparture.NOTHING
        if joined.complete:
            links = [link for link in joined.links if link.later == at]
            if any(link.certainty is not Certainty.AMBIGUOUS and link.key is not JoinKey.RANGE for link in links):
                return
            if any(link.key is JoinKey.RANGE for link in links):
                known = KnownDeparture.PARTLY
            elif links and all(link.key is not JoinKey.SEQUENCE for link in links):
                known = KnownDeparture.ONE_OF_SEVERAL
        packet = view.packet
        ended = bool(packet.continues) or packet.outcome in (Outcome.DROPPED, Outcome.UNKNOWN)
        if is_own and not ended:
            return
        seen = SeenPacket(view.node, view.time, _error(view), PacketHeader.of(packet), known, ended)
        keys = tuple((view.node, *key) for key in _keys(packet.protocol, packet.endpoints, packet))
        self._order.append((seen, keys))
        for key in keys:
            self._by_key.setdefault(key, deque()).append(seen)
        if len(self._order) > MOST_SEEN:
            self.forgotten = max(self.forgotten, self._order[0][0].time)
            evictions.add("packets without a certain departure")
            self._remove_oldest()

    def forget(self, until: int) -> None:
        """Forgets packets from before a time, ns."""
        while self._order and self._order[0][0].time < until:
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        _, keys = self._order.popleft()
        for key in keys:
            same = self._by_key[key]
            same.popleft()
            if not same:
                del self._by_key[key]

    def is_like(self, node: str, packet: Packet, left: WireHeader, time: int, error: int) -> bool:
        """Whether something came to a node that may be a packet of another node.

        Args:
            node: The node.
            packet: The packet that left another node.
            left: Its header when it left.
            time: When it left, ns, of the reference clock.
            error: Largest error of the time, ns.
        """
        header = PacketHeader.of(packet)
        return any(
            seen.time + seen.error + error >= time and _may_be(seen, header, left.endpoints)
            for key in _keys(packet.protocol, left.endpoints, packet)
            for seen in self._by_key.get((node, *key), ())
        )

    def has_ended(self, node: str, packet: Packet, left: WireHeader, time: int) -> bool:
        """Whether the node that a packet left shows later that it went no further, as after a neighbour did not answer."""
        return any(
            seen.ended and seen.time + seen.error >= time
            for seen in self._by_key.get((node, "flow", packet.protocol, left.endpoints), ())
        )


def _error(view: NodeView) -> int:
    return view.error if view.offset is not None else KEPT_NS


def _keys(protocol: str, ends: Endpoints, packet: Packet) -> Iterator[tuple[Hashable, ...]]:
    """What two views of one packet may have in common, the surest first."""
    yield "flow", protocol, ends
    if protocol == "TCP":
        yield "segment", packet.seq, packet.length, packet.tcp_flags
        return
    yield "pair", protocol, ends.src, ends.dst
    yield "to", protocol, packet.length, ends.dst, ends.dport
    yield "from", protocol, packet.length, ends.src, ends.sport


def _may_be(seen: SeenPacket, packet: PacketHeader, ends: Endpoints) -> bool:
    """Whether a packet that came may be one that left with these addresses; they have a key in common."""
    came = seen.header
    if seen.known is KnownDeparture.ONE_OF_SEVERAL:
        return (came.seq, came.ident, came.length) == (packet.seq, packet.ident, packet.length)
    if seen.known is KnownDeparture.PARTLY:
        return came.endpoints == ends and _overlaps(came, packet)
    if came.protocol == "TCP" or (came.endpoints.src, came.endpoints.dst) == (ends.src, ends.dst):
        return True
    return came.ident == packet.ident or not came.ident or not packet.ident


def _overlaps(first: PacketHeader, second: PacketHeader) -> bool:
    """Whether two segments of a flow may have a byte in common, or one of them may be a part of the other."""
    headers = (IPV4_HEADER if first.family == "IPv4" else IPV6_HEADER) + TCP_HEADER
    # The bytes that they have at least: options of TCP are no payload.
    spans = [max(1, each.length - headers - SMALL_PAYLOAD) for each in (first, second)]
    if (second.seq - first.seq) % _SEQUENCES < spans[0] or (first.seq - second.seq) % _SEQUENCES < spans[1]:
        return True
    whole, part = (first, second) if first.length >= second.length else (second, first)
    offset = (part.seq - whole.seq) % _SEQUENCES
    if offset + 1 > whole.length - headers:
        return False
    return not (whole.ident and part.ident) or (part.ident - whole.ident) % _IDENTS <= MERGED_AT_MOST
