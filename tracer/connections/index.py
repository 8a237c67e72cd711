# SPDX-License-Identifier: Apache-2.0
"""Finds the timeline that a packet belongs to.

The first key is conntrack's identity: original tuple, zone, namespace. The second key is for packets that conntrack does not
know, and for connections that several namespaces track separately: every pair of endpoints that a packet of the connection had,
before and after each address translation. An ICMP error is found by the connection that it quotes.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.handshakes.correlator import ends_of
from tracer.model.packet import Endpoints, Packet
from tracer.model.timeline import ConnectionKey
from tracer.util.evictions import evictions

CONNECTION_PROTOCOLS = ("TCP", "UDP", "SCTP", "DCCP", "UDPLITE")
BY_ENDS = "joined by its addresses"
"""Remark on a packet that conntrack does not know."""

MAX_KEYS = 64
"""Most keys of one timeline: a connection with a few translations in a few namespaces has ten."""

Alias = tuple[str, Endpoints]


class ConnectionIndex:
    """Timeline numbers by conntrack identity and by endpoints."""

    def __init__(self) -> None:
        self._by_identity: dict[ConnectionKey, int] = {}
        self._by_alias: dict[Alias, int] = {}
        self._keys: dict[int, dict[ConnectionKey | Alias, None]] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def numbers(self, packet: Packet) -> Iterator[tuple[int, str]]:
        """Yields (timeline number, remark) of the timelines that a packet may belong to, the most certain first.

        The remark is "" where the number is observed, BY_ENDS where it is derived.
        """
        flow = packet.flow
        if flow and packet.protocol.startswith("ICMP") and flow.state == "RELATED":
            for protocol in CONNECTION_PROTOCOLS:
                number = self._by_identity.get(ConnectionKey(protocol, flow.orig, flow.zone, flow.netns))
                if number is not None:
                    yield number, ""
            return
        if flow:
            number = self._by_identity.get(connection_key(packet))
            if number is not None:
                yield number, ""
        for ends in (packet.endpoints, *ends_of(packet)):
            for alias in ((packet.protocol, ends), (packet.protocol, ends.reversed)):
                number = self._by_alias.get(alias)
                if number is not None:
                    yield number, "" if flow else BY_ENDS

    def find(self, key: ConnectionKey) -> int | None:
        """The timeline number of a conntrack entry; None when there is none."""
        number = self._by_identity.get(key)
        return self._by_alias.get((key.protocol, key.orig)) if number is None else number

    def has(self, number: int, protocol: str, ends: Endpoints) -> bool:
        """Whether these endpoints, in this direction, belong to that timeline."""
        return self._by_alias.get((protocol, ends)) == number

    def add(self, number: int, key: ConnectionKey, packet: Packet) -> None:
        """Adds the identity and all endpoints of this packet as keys of the timeline. key: the timeline's own."""
        keys = self._keys.setdefault(number, {})
        for identity in (key, connection_key(packet)):
            if self._by_identity.get(identity) != number:
                self._by_identity[identity] = number
                keys[identity] = None
        for ends in ends_of(packet):
            if not self.has(number, packet.protocol, ends) and not self.has(number, packet.protocol, ends.reversed):
                alias = packet.protocol, ends
                self._by_alias[alias] = number
                keys[alias] = None
        while len(keys) > MAX_KEYS:
            oldest = next(iter(keys))
            del keys[oldest]
            self._remove_key(number, oldest)
            evictions.add("keys of timelines")

    def remove(self, number: int) -> None:
        """Removes all keys of a timeline."""
        for key in self._keys.pop(number, ()):
            self._remove_key(number, key)

    def _remove_key(self, number: int, key: ConnectionKey | Alias) -> None:
        """Removes a key, unless another timeline has taken it over."""
        if isinstance(key, ConnectionKey):
            if self._by_identity.get(key) == number:
                del self._by_identity[key]
        elif self._by_alias.get(key) == number:
            del self._by_alias[key]


def connection_key(packet: Packet) -> ConnectionKey:
    """The packet's connection: conntrack's where it knows the packet, otherwise the packet's own endpoints."""
    flow = packet.flow
    if not flow:
        return ConnectionKey(packet.protocol, packet.endpoints)
    return ConnectionKey(packet.protocol, flow.orig, flow.zone, flow.netns)
