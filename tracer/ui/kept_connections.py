# SPDX-License-Identifier: Apache-2.0
"""The connections and packets that the screen can show: a bounded number; what is evicted is counted."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from tracer.model.connection import ConnectionKey
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.packets.outcome import BAD
from tracer.util.bounded_queue import BoundedQueue
from tracer.util.frozen import evolve
from tracer.util.lru_dict import LruDict

MOST_CONNECTIONS = 1_000
"""Most connections that are kept."""
MOST_PACKETS = 20_000
"""Most packets that are kept of all connections."""
FIRST_PACKETS = 8
"""First packets of a connection that are kept: they met the rules of NAT."""
NEWEST_PACKETS = 56
"""Newest packets of a connection that are kept, beside the first ones."""
MOST_VERDICTS = 16
"""Most SYN verdicts that are kept of a connection."""


class KeptConnection:
    """A connection, its totals, and some of its packets.

    Args:
        number: Order in which connections were first seen.
        packet: Its first packet.

    Attributes:
        number: Order in which connections were first seen.
        start: Its first packet.
        last: Its newest packet.
        worst: Its newest packet that was dropped, rejected or refused; None = none.
        packets: Number of its packets, also of those that are not kept.
        bad: Number of those that were dropped, rejected or refused.
        verdict: The newest verdict on one of its SYNs; None = none.
    """

    def __init__(self, number: int, packet: Packet) -> None:
        self.number, self.start, self.last = number, packet, packet
        self.worst: Packet | None = None
        self.packets = self.bad = 0
        self.verdict: HandshakeVerdict | None = None
        self._first: list[Packet] = []
        self._newest: BoundedQueue[Packet] = BoundedQueue(NEWEST_PACKETS, "packets of a connection of ui")
        self._verdicts: LruDict[int, HandshakeVerdict] = LruDict(MOST_VERDICTS, "SYN verdicts of a connection of ui")

    def add(self, packet: Packet) -> None:
        self.packets += 1
        self.last = packet
        if packet.outcome in BAD:
            self.bad += 1
            self.worst = packet
        (self._first if len(self._first) < FIRST_PACKETS else self._newest).append(packet)

    def add_verdict(self, verdict: HandshakeVerdict) -> None:
        if verdict.attempt:
            # The attempt has the packets of the handshake, with all that they refer to.
            self.verdict = self._verdicts[verdict.attempt.syn.identity] = evolve(verdict, attempt=None)

    def verdict_of(self, packet: Packet) -> HandshakeVerdict | None:
        """The verdict on a SYN; None = no SYN, or no verdict yet."""
        return self._verdicts.get(packet.identity)

    def kept(self) -> Iterator[Packet]:
        """Its kept packets, oldest first."""
        yield from self._first
        yield from list(self._newest)

    @property
    def kept_count(self) -> int:
        return len(self._first) + len(self._newest)


class KeptConnections:
    """All kept connections. At the bound the connection unused for longest is evicted with its packets.

    Args:
        most: Most connections.
        most_packets: Most packets.

    Attributes:
        packets: Number of kept packets.
        evicted_packets: Number of packets that were evicted.
    """

    def __init__(self, most: int = MOST_CONNECTIONS, most_packets: int = MOST_PACKETS) -> None:
        self._most_packets = most_packets
        self.packets = self.evicted_packets = 0
        self._count = 0
        self._connections: LruDict[Hashable, KeptConnection] = LruDict(most, "connections of ui", self._evicted)

    @property
    def evicted(self) -> int:
        """Number of connections that were evicted."""
        return self._connections.evicted

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, packet: Packet) -> None:
        """Takes a packet."""
        key = _key(packet)
        connection = self._connections.get(key)
        if connection is None:
            self._count += 1
            connection = self._connections[key] = KeptConnection(self._count, packet)
        before = connection.kept_count
        connection.add(packet)
        kept = connection.kept_count - before
        self.packets += kept
        self.evicted_packets += 1 - kept
        while self.packets > self._most_packets:
            self._connections.evict()

    def add_verdict(self, verdict: HandshakeVerdict) -> None:
        """Takes the verdict on a SYN whose connection is kept."""
        connection = self._connections.get(_key(verdict.attempt.syn)) if verdict.attempt else None
        if connection:
            connection.add_verdict(verdict)

    def in_order(self) -> list[KeptConnection]:
        """The kept connections, in the order in which they were first seen."""
        return sorted(self._connections.values(), key=lambda connection: connection.number)

    def _evicted(self, key: Hashable, connection: KeptConnection) -> None:
        self.packets -= connection.kept_count
        self.evicted_packets += connection.kept_count


def _key(packet: Packet) -> Hashable:
    """The number of its connection; the connection in conntrack or the endpoints, where connections are not numbered."""
    return packet.connection or ConnectionKey.of(packet)
