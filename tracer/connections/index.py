# SPDX-License-Identifier: Apache-2.0
"""Finds the timeline that a packet belongs to.

The first way is conntrack's key: original tuple, zone, namespace. The second way is for packets that conntrack does not know,
and for connections that several namespaces track separately: the aliases of a packet, which are the endpoints that it had in
each namespace. Where conntrack of one namespace has the connection in another zone, it is another connection. An ICMP error is
found by the connection that it quotes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tracer.model.connection import Alias, ConnectionKey
from tracer.model.packet import Endpoints, Packet
from tracer.packets.aliases import aliases_of

CONNECTION_PROTOCOLS = ("TCP", "UDP", "SCTP", "DCCP", "UDPLITE")
BY_ENDS = "joined by its addresses"
"""Remark on a packet that conntrack does not know."""
LOOPBACK = ("127.", "::1")
"""Beginnings of the addresses that no packet takes out of its namespace."""


@dataclass(slots=True)
class _IndexEntry:
    """All that leads to one timeline.

    Attributes:
        keys: keys of conntrack, one for each namespace that tracks the connection.
        aliases: aliases of its packets, in the direction of its first packet.
        ends: the endpoints of these aliases.
    """

    keys: list[ConnectionKey] = field(default_factory=list)
    aliases: list[Alias] = field(default_factory=list)
    ends: set[Endpoints] = field(default_factory=set)


class ConnectionIndex:
    """Timeline numbers by conntrack key and by alias. The keys and aliases of a timeline are removed together with it."""

    def __init__(self) -> None:
        self._by_key: dict[ConnectionKey, int] = {}
        self._by_alias: dict[Alias, int] = {}
        self._entries: dict[int, _IndexEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def numbers(self, packet: Packet) -> Iterator[tuple[int, str]]:
        """Yields (timeline number, remark) of the timelines that a packet may belong to, the most certain first.

        The remark is "" where the number is observed, BY_ENDS where it is derived.
        """
        flow = packet.flow
        if flow and packet.protocol.startswith("ICMP") and flow.state == "RELATED":
            for protocol in CONNECTION_PROTOCOLS:
                number = self._by_key.get(ConnectionKey(protocol, flow.orig, flow.zone, flow.netns))
                if number is not None:
                    yield number, ""
            return
        key = ConnectionKey.of(packet)
        number = self._by_key.get(key)
        if number is not None:
            yield number, ""
        for alias in aliases_of(packet):
            for number in self._with_alias(alias, key):
                yield number, "" if flow else BY_ENDS

    def elsewhere(self, packet: Packet) -> Iterator[int]:
        """Yields the timelines with these endpoints in any namespace. Another connection may have the same endpoints there."""
        key = ConnectionKey.of(packet)
        for ends in dict.fromkeys(alias.ends for alias in aliases_of(packet)):
            if not ends.src.startswith(LOOPBACK) and not ends.dst.startswith(LOOPBACK):
                yield from self._with_alias(Alias("", packet.protocol, ends), key)

    def find(self, key: ConnectionKey) -> int | None:
        """The timeline number of an entry of conntrack; None when there is none, or when it is not certain."""
        number = self._by_key.get(key)
        if number is not None or not key.is_tracked:
            return number
        number = self._by_alias.get(Alias(key.netns, key.protocol, key.orig))
        return None if number is None or self._is_other_zone(number, key) else number

    def has(self, number: int, ends: Endpoints) -> bool:
        """Whether that timeline has these endpoints, in this direction."""
        return ends in self._entries[number].ends

    def add(self, number: int, packet: Packet) -> None:
        """Adds the key and all aliases of this packet to the timeline."""
        entry = self._entries.setdefault(number, _IndexEntry())
        key = ConnectionKey.of(packet)
        if key.is_tracked and self._by_key.get(key) != number:
            self._by_key[key] = number
            entry.keys.append(key)
        for alias in aliases_of(packet):
            if self._by_alias.get(alias) != number:
                reverse = alias.reversed
                if self._by_alias.get(reverse) != number:
                    self._add_alias(number, entry, reverse if reverse.ends in entry.ends else alias)

    def remove(self, number: int) -> None:
        """Removes all keys and aliases of a timeline."""
        entry = self._entries.pop(number, _IndexEntry())
        for key in entry.keys:
            if self._by_key.get(key) == number:
                del self._by_key[key]
        for alias in entry.aliases:
            if self._by_alias.get(alias) == number:
                del self._by_alias[alias]

    def _add_alias(self, number: int, entry: _IndexEntry, alias: Alias) -> None:
        anywhere = Alias("", alias.protocol, alias.ends)
        for each in (alias, anywhere) if self._by_alias.get(anywhere) != number else (alias,):
            self._by_alias[each] = number
            entry.aliases.append(each)
        entry.ends.add(alias.ends)

    def _with_alias(self, alias: Alias, key: ConnectionKey) -> Iterator[int]:
        """Yields the timeline of an alias in either direction, if it can be the timeline of that key."""
        for each in (alias, alias.reversed):
            number = self._by_alias.get(each)
            if number is not None and not self._is_other_zone(number, key):
                yield number

    def _is_other_zone(self, number: int, key: ConnectionKey) -> bool:
        """Whether the namespace of this key tracks the timeline's connection in another zone."""
        return any(own.netns == key.netns and own.zone != key.zone for own in self._entries[number].keys)
