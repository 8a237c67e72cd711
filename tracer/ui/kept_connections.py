# SPDX-License-Identifier: Apache-2.0
"""The connections and packets that the screen can show: a bounded number; what is evicted is counted."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from tracer.analysis.top.joined_syns import chosen
from tracer.model.handshake import HandshakeVerdict
from tracer.model.joined_packet import JoinedPacket, NodeView, ShownPacket
from tracer.model.packet import Packet
from tracer.packets.joined_views import last_packet
from tracer.packets.outcome import BAD
from tracer.ui.node_results import NodeVerdict, connection_keys, views_of
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
MOST_ALIASES = 16
"""Most further keys of a connection, of other nodes. A packet that has none of them is a connection of its own."""


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
        aliases: Further keys by which its packets are found: those of other nodes.
    """

    def __init__(self, number: int, packet: ShownPacket) -> None:
        self.number, self.start, self.last = number, packet, packet
        self.worst: ShownPacket | None = None
        self.packets = self.bad = 0
        self.verdict: HandshakeVerdict | None = None
        self.aliases: list[Hashable] = []
        self._first: list[ShownPacket] = []
        self._newest: BoundedQueue[ShownPacket] = BoundedQueue(NEWEST_PACKETS, "packets of a connection of ui")
        self._verdicts: LruDict[tuple[str, int], HandshakeVerdict] = LruDict(
            MOST_VERDICTS, "SYN verdicts of a connection of ui"
        )

    def add(self, packet: ShownPacket) -> None:
        self.packets += 1
        self.last = packet
        if last_packet(packet).outcome in BAD:
            self.bad += 1
            self.worst = packet
        (self._first if len(self._first) < FIRST_PACKETS else self._newest).append(packet)

    def add_verdict(self, verdict: HandshakeVerdict, node: str = "") -> None:
        """Takes the verdict of a node on a SYN; "" = the only node of the run."""
        if not verdict.attempt:
            return
        syn = node, verdict.attempt.syn.identity
        # The attempt has the packets of the handshake, with all that they refer to.
        self.verdict = self._verdicts[syn] = evolve(verdict, attempt=None)
        if node:
            shown = next((each for each in self.kept() if any(_syn_key(view) == syn for view in views_of(each))), None)
            found = self.verdicts_of(shown) if shown else ()
            self.verdict = chosen([each.verdict for each in found]) if found else self.verdict

    def verdict_of(self, packet: Packet) -> HandshakeVerdict | None:
        """The verdict on a SYN of the only node of a run; None = no SYN, or no verdict yet."""
        return self._verdicts.get(("", packet.identity))

    def verdicts_of(self, shown: ShownPacket) -> list[NodeVerdict]:
        """The verdicts on a SYN, of each node that has one, in the order of its way."""
        views = views_of(shown)
        return [NodeVerdict(view.node, found) for view in views if (found := self._verdicts.get(_syn_key(view)))]

    def kept(self) -> Iterator[ShownPacket]:
        """Its kept packets, oldest first."""
        yield from self._first
        yield from list(self._newest)

    @property
    def kept_count(self) -> int:
        return len(self._first) + len(self._newest)


def _syn_key(view: NodeView) -> tuple[str, int]:
    return view.node, view.packet.identity


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
        self._aliases: dict[Hashable, Hashable] = {}
        self._connections: LruDict[Hashable, KeptConnection] = LruDict(most, "connections of ui", self._evicted, is_exact=True)

    @property
    def evicted(self) -> int:
        """Number of connections that were evicted."""
        return self._connections.evicted

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, packet: ShownPacket) -> None:
        """Takes a packet."""
        keys = connection_keys(packet)
        key = self._known(keys)
        connection = self._connections.get(key)
        if connection is None:
            self._count += 1
            connection = self._connections[key] = KeptConnection(self._count, packet)
        if len(keys) > 1:
            self._add_aliases(key, connection, keys)
        before = connection.kept_count
        connection.add(packet)
        kept = connection.kept_count - before
        self.packets += kept
        self.evicted_packets += 1 - kept
        while self.packets > self._most_packets:
            self._connections.evict()

    def _known(self, keys: Sequence[Hashable]) -> Hashable:
        """The key of the connection of a packet: the first one that is kept, or else the packet's first."""
        known = (self._aliases.get(key, key) for key in keys)
        return next((key for key in known if key in self._connections), keys[0])

    def _add_aliases(self, key: Hashable, connection: KeptConnection, keys: Sequence[Hashable]) -> None:
        """Notes by which other keys a connection is found, unless another one has them."""
        for other in keys:
            if other == key or other in self._aliases or other in self._connections:
                continue
            if len(connection.aliases) < MOST_ALIASES:
                connection.aliases.append(other)
                self._aliases[other] = key

    def add_verdict(self, verdict: HandshakeVerdict, node: str = "") -> None:
        """Takes the verdict of a node on a SYN of which the connection is kept; "" = the only node of the run."""
        if not verdict.attempt:
            return
        syn = verdict.attempt.syn
        connection = self._connections.get(self._known(connection_keys(JoinedPacket((NodeView(node, syn),)) if node else syn)))
        if connection:
            connection.add_verdict(verdict, node)

    def in_order(self) -> list[KeptConnection]:
        """The kept connections, in the order in which they were first seen."""
        return sorted(self._connections.values(), key=lambda connection: connection.number)

    def _evicted(self, key: Hashable, connection: KeptConnection) -> None:
        for alias in connection.aliases:
            del self._aliases[alias]
        self.packets -= connection.kept_count
        self.evicted_packets += connection.kept_count
