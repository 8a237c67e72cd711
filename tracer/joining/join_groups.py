# SPDX-License-Identifier: Apache-2.0
"""Groups of ends with the same key, and which departure and which arrival in a group are one packet."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from tracer.joining.pair_clocks import PairClocks
from tracer.joining.wire_headers import WireHeader, payload_of
from tracer.model.joined_packet import Certainty, JoinKey, NodeView
from tracer.model.packet import Packet

MAX_ENDS = 96
"""Most ends of one group. When there are more, each of them is ambiguous."""
IPV4_HEADER, IPV6_HEADER, TCP_HEADER = 20, 40, 20
"""Shortest headers, bytes."""
SHORTEST_SEGMENT = 48
"""Fewest payload bytes of a segment that is not the last one of a divided packet."""
SMALL_PAYLOAD = 40
"""Longest options of TCP, bytes: so many bytes behind the shortest headers may be no payload."""
ETHERNET_BYTES = 1500
"""Longest IP packet on most wires, bytes: a longer one is made of several segments, or of a jumbo frame."""
BUCKET_BITS = 16
"""Segments are grouped by the sequence number without these bits."""
_SEQUENCES = 1 << 32


class WaitingView:
    """A view that waits.

    Attributes:
        view: The view.
        time: When the packet was first seen there, ns, of the reference clock.
        open: Groups that are not closed, with an end of this view in each.
        matches: Matches of its ends.
        is_emitted: It was given out.
        is_given_up: It was given out before its views on other nodes could come.
    """

    __slots__ = ("is_emitted", "is_given_up", "matches", "open", "time", "view")

    def __init__(self, view: NodeView, time: int) -> None:
        self.view, self.time = view, time
        self.open: list[Group] = []
        self.matches: list[Match] = []
        self.is_emitted = self.is_given_up = False


class WireEnd:
    """The arrival of a packet at a node, or its departure.

    Attributes:
        entry: The view.
        endpoints: The addresses on the wire.
        time: ns since the epoch by the node's clock.
        is_departure: It left the node.
        is_matched: It has a match, which may be an ambiguous one.
    """

    __slots__ = ("endpoints", "entry", "is_departure", "is_matched", "time")

    def __init__(self, entry: WaitingView, header: WireHeader, is_departure: bool) -> None:
        self.entry, self.endpoints, self.time, self.is_departure = entry, header.endpoints, header.time, is_departure
        self.is_matched = False

    @property
    def packet(self) -> Packet:
        """The packet."""
        return self.entry.view.packet

    @property
    def key(self) -> Hashable:
        """Equal for the ends of one packet on all nodes."""
        packet, ends = self.entry.view.packet, self.endpoints
        return (
            ends.sport, packet.seq, packet.ident, packet.ack, ends.dport, ends.src, ends.dst, packet.length, packet.tcp_flags,
            packet.protocol, packet.icmp,
        )  # fmt: skip

    @property
    def kind(self) -> JoinKey:
        """The kind of this key."""
        return JoinKey.HEADER if self.packet.protocol == "TCP" else JoinKey.PAYLOAD

    @property
    def is_sure(self) -> bool:
        """Whether a sender gives no second packet the same key within seconds: each TCP segment has an IP identification of
        its own, also one that is sent again."""
        return self.packet.protocol == "TCP" and self.packet.ident != 0

    @property
    def is_syn(self) -> bool:
        return self.packet.tcp_flags == "SYN"

    def second_keys(self) -> tuple[Hashable, ...]:
        """The keys by which it is compared if no end has its key."""
        packet = self.packet
        if packet.protocol != "TCP":
            return ()
        if self.is_syn:
            return (("SYN", packet.seq, packet.length, packet.ident, packet.family),)
        return segment_keys(self)


class Match(NamedTuple):
    """A departure and an arrival that are one packet; or one of both, of which the other is not certain.

    Attributes:
        earlier: The departure; None = one of several.
        later: The arrival; None = one of several.
        key: What they have in common.
        certainty: How well this is known.
        candidates: Number of ends that come into question for the one that is None.
    """

    earlier: WireEnd | None
    later: WireEnd | None
    key: JoinKey
    certainty: Certainty
    candidates: int = 1


Pair = tuple[WireEnd, WireEnd]
"""A departure and an arrival."""


class Group:
    """Ends with the same key.

    Attributes:
        key: The key.
        ends: The ends.
        newest: Time of the newest end, ns, of the reference clock.
        is_queued: It waits for its time to be closed.
        is_closed: It was matched.
        is_overfull: There are more ends with the key than a group has: none of the matches is certain.
    """

    __slots__ = ("ends", "is_closed", "is_overfull", "is_queued", "key", "newest")

    def __init__(self, key: Hashable, is_overfull: bool = False) -> None:
        self.key, self.newest, self.is_overfull = key, -(1 << 62), is_overfull
        self.ends: list[WireEnd] = []
        self.is_queued = self.is_closed = False

    def matches(self, clocks: PairClocks, transit: int) -> Iterator[Match]:
        """Yields the matches of the ends. transit: longest time between two nodes, ns."""
        if len(self.ends) < 2:
            return
        if len(self.ends) == 2:
            departure, arrival = self.ends if self.ends[0].is_departure else reversed(self.ends)
            is_pair = departure.is_departure and not arrival.is_departure
            if is_pair and _is_in_time(departure, arrival, clocks, transit) and self._is_one(departure, arrival):
                yield from self._chosen([(departure, arrival)], True)
            return
        departures = [end for end in self.ends if end.is_departure]
        arrivals = [end for end in self.ends if not end.is_departure]
        pairs = [(d, a) for d in departures for a in arrivals if _is_in_time(d, a, clocks, transit) and self._is_one(d, a)]
        if pairs:
            yield from self._chosen(pairs, len(departures) == 1 and len(arrivals) == 1)

    def _is_one(self, departure: WireEnd, arrival: WireEnd) -> bool:
        """Whether two ends can be one packet, apart from their times."""
        if not departure.packet.raw or not arrival.packet.raw:
            return True
        left, arrived = payload_of(departure.packet), payload_of(arrival.packet)
        both = min(len(left), len(arrived))
        return left[:both] == arrived[:both]

    def _chosen(self, pairs: Sequence[Pair], is_only_pair: bool) -> Iterator[Match]:
        """Yields the matches among pairs that can be one packet. is_only_pair: no other end has the key."""
        kind = pairs[0][0].kind
        if is_only_pair and not self.is_overfull:
            yield Match(*pairs[0], kind, Certainty.OBSERVED)
            return
        for part in _parts(pairs):
            chain = None if self.is_overfull else _chain(part)
            if chain is None:
                yield from _ambiguous(part, kind)
            else:
                yield from (Match(departure, arrival, kind, Certainty.DERIVED) for departure, arrival in chain)


class SynGroup(Group):
    """SYNs with the same initial sequence number and different addresses."""

    __slots__ = ()

    def _is_one(self, departure: WireEnd, arrival: WireEnd) -> bool:
        left, arrived = departure.endpoints, arrival.endpoints
        if left == arrived or departure.entry.view.node == arrival.entry.view.node:
            return False
        # Translations leave the identification as it is. Without one, one end has to be the same.
        if departure.packet.ident:
            return True
        is_source_kept = (left.src, left.sport) == (arrived.src, arrived.sport)
        return is_source_kept or (left.dst, left.dport) == (arrived.dst, arrived.dport)

    def _chosen(self, pairs: Sequence[Pair], is_only_pair: bool) -> Iterator[Match]:
        for part in _parts(pairs):
            if len(part) == 1 and not self.is_overfull:
                yield Match(*part[0], JoinKey.SEQUENCE, Certainty.DERIVED)
            else:
                yield from _ambiguous(part, JoinKey.SEQUENCE)


class SegmentGroup(Group):
    """Segments of one flow that were merged by a receiving node (GRO) or divided by a network card (GSO).

    They have the same acknowledgement number, and their sequence numbers begin or lie in the same 64 kB.
    """

    __slots__ = ()

    def _is_one(self, departure: WireEnd, arrival: WireEnd) -> bool:
        whole, part = departure.packet, arrival.packet
        if whole.length < part.length:
            whole, part = part, whole
        # A part is compared in the group in which it begins: all segments that contain it are there.
        return part.seq >> BUCKET_BITS == self.bucket and contains(whole, part)

    @property
    def bucket(self) -> object:
        """The 64 kB of sequence numbers of this group."""
        return self.key[-1] if isinstance(self.key, tuple) else None

    def _chosen(self, pairs: Sequence[Pair], is_only_pair: bool) -> Iterator[Match]:
        wholes: dict[WireEnd, list[Pair]] = {}
        for departure, arrival in pairs:
            part = arrival if departure.packet.length > arrival.packet.length else departure
            wholes.setdefault(part, []).append((departure, arrival))
        for found in wholes.values():
            if len(found) == 1 and not self.is_overfull:
                yield Match(*found[0], JoinKey.RANGE, Certainty.DERIVED)
            else:
                yield from _ambiguous(found, JoinKey.RANGE)


def contains(whole: Packet, part: Packet) -> bool:
    """Whether one TCP segment can be a part of another of the same flow."""
    if whole.length <= part.length:
        return False
    offset = (part.seq - whole.seq) % _SEQUENCES
    if offset + part.length - _headers(part) - SMALL_PAYLOAD > whole.length - _headers(whole):
        return False
    if whole.family != "IPv4":
        return True
    # A divided packet has consecutive identifications, or none has one.
    step = (part.ident - whole.ident) % (1 << 16)
    if offset == 0 or (whole.ident == 0 and part.ident == 0):
        return step == 0
    # Before it there are segments that are as long as it, unless it is itself made of several.
    payload = part.length - _headers(part) - SMALL_PAYLOAD
    shortest = max(SHORTEST_SEGMENT, payload) if part.length <= ETHERNET_BYTES else SHORTEST_SEGMENT
    return 1 <= step <= offset // shortest


def segment_keys(end: WireEnd) -> tuple[Hashable, ...]:
    """The keys of the groups in which an end can be a part or a whole; () = it has no payload."""
    packet = end.packet
    payload = packet.length - _headers(packet)
    if payload <= SMALL_PAYLOAD and not (packet.ident and payload > 12):
        return ()
    first, last = packet.seq >> BUCKET_BITS, (packet.seq + payload) % _SEQUENCES >> BUCKET_BITS
    flow = ("segments", end.endpoints, packet.ack)
    return ((*flow, first),) if first == last else ((*flow, first), (*flow, last))


def _headers(packet: Packet) -> int:
    """Bytes of the shortest headers of a TCP packet."""
    return (IPV4_HEADER if packet.family == "IPv4" else IPV6_HEADER) + TCP_HEADER


def _is_in_time(departure: WireEnd, arrival: WireEnd, clocks: PairClocks, transit: int) -> bool:
    """Whether a packet can have arrived at that time, if it left at that time."""
    if departure.entry is arrival.entry:
        return False
    low, high = clocks.difference(departure.entry.view.node, arrival.entry.view.node, departure.time)
    elapsed = arrival.time - departure.time
    return elapsed >= low and elapsed - high <= transit


def _parts(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """The pairs, divided into parts that have no view in common."""
    if len(pairs) == 1:
        return [list(pairs)]
    parts: list[tuple[set[WaitingView], list[Pair]]] = []
    for pair in pairs:
        entries, own = {pair[0].entry, pair[1].entry}, [pair]
        others = []
        for part in parts:
            if entries.isdisjoint(part[0]):
                others.append(part)
            else:
                entries |= part[0]
                own = part[1] + own
        parts = [*others, (entries, own)]
    return [own for _, own in parts]


def _chain(pairs: Sequence[Pair]) -> list[Pair] | None:
    """The only way on which one packet can have passed all views; None = there are several packets, or several ways.

    A node that forwards a packet as it is has both an arrival and a departure with the same key.
    """
    if len(pairs) == 1:
        return list(pairs)
    following = {(departure.entry, arrival.entry): (departure, arrival) for departure, arrival in pairs}
    entries = sorted({entry for pair in following for entry in pair}, key=lambda entry: entry.time)
    entries.sort(key=lambda entry: sum(pair[1] is entry for pair in following))
    nodes = [entry.view.node for entry in entries]
    # A packet may come back to the node that it left first; two views at any other node are two packets.
    inner = nodes[:-1] if nodes[0] == nodes[-1] and len(nodes) > 2 else nodes
    if len(set(inner)) < len(inner):
        return None
    places = {entry: at for at, entry in enumerate(entries)}
    if any(places[before] >= places[after] for before, after in following):
        return None
    found = [following.get(pair) for pair in pairwise(entries)]
    return None if None in found else [pair for pair in found if pair]


def _ambiguous(pairs: Sequence[Pair], kind: JoinKey) -> Iterator[Match]:
    """Yields, for each end, that one of several can be the other."""
    arrivals: dict[WireEnd, set[WireEnd]] = {}
    departures: dict[WireEnd, set[WireEnd]] = {}
    for departure, arrival in pairs:
        arrivals.setdefault(departure, set()).add(arrival)
        departures.setdefault(arrival, set()).add(departure)
    for end, others in arrivals.items():
        yield Match(end, None, kind, Certainty.AMBIGUOUS, len(others))
    for end, others in departures.items():
        yield Match(None, end, kind, Certainty.AMBIGUOUS, len(others))
