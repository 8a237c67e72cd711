# SPDX-License-Identifier: Apache-2.0
"""Finds the timeline that a packet belongs to.

The first way is conntrack's key: original tuple, zone, namespace. The second way is for packets that conntrack does not know,
and for connections that several namespaces track separately: the aliases of a packet, which are the endpoints that it had in
each namespace. Where conntrack of one namespace has the connection in another zone, it is another connection. An ICMP error is
found by the connection that it quotes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from tracer.model.connection import Alias, ConnectionKey, anywhere, is_loopback, make_alias, reverse
from tracer.model.endpoints import Endpoints
from tracer.model.namespace_name import NO_NETNS
from tracer.model.packet import Packet
from tracer.packets.aliases import Aliases
from tracer.util.evictions import evictions

K = TypeVar("K", ConnectionKey, Alias)
CONNECTION_PROTOCOLS = ("TCP", "UDP", "SCTP", "DCCP", "UDPLITE")
BY_ENDS = "joined by its addresses"
"""Remark on a packet that conntrack does not know."""
MAX_KEYS = 64
"""Most keys, and most aliases, of one timeline: a connection with a few translations in a few namespaces has fifteen."""


@dataclass(slots=True)
class _IndexEntry:
    """All that leads to one timeline.

    Attributes:
        keys: keys of conntrack, one for each namespace that tracks the connection; oldest first.
        aliases: aliases of its packets, in the direction of the first one; oldest first.
    """

    keys: tuple[ConnectionKey, ...] = ()
    aliases: tuple[Alias, ...] = ()


class ConnectionIndex:
    """Timeline numbers by conntrack key and by alias. The keys and aliases of a timeline are removed together with it."""

    def __init__(self) -> None:
        self._by_key: dict[ConnectionKey, int] = {}
        self._by_alias: dict[Alias, int] = {}
        self._entries: dict[int, _IndexEntry] = {}
        self._aliases = Aliases()

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
        for alias in self._aliases.of(packet):
            for number in self._with_alias(alias, key):
                yield number, "" if flow else BY_ENDS

    def elsewhere(self, packet: Packet) -> Iterator[int]:
        """Yields the timelines with these endpoints in any namespace. Another connection may have the same endpoints there."""
        key = ConnectionKey.of(packet)
        for alias in dict.fromkeys(anywhere(alias) for alias in self._aliases.of(packet)):
            if not is_loopback(alias):
                yield from self._with_alias(alias, key)

    def find(self, key: ConnectionKey) -> int | None:
        """The timeline number of an entry of conntrack; None when there is none, or when it is not certain."""
        number = self._by_key.get(key)
        if number is not None or not key.is_tracked:
            return number
        number = self._by_alias.get(make_alias(key.netns, key.protocol, key.orig))
        return None if number is None or self._is_other_zone(number, key) else number

    def has(self, number: int, protocol: str, ends: Endpoints) -> bool:
        """Whether that timeline has these endpoints, in this direction."""
        return make_alias(NO_NETNS, protocol, ends) in self._entries[number].aliases

    def add(self, number: int, packet: Packet) -> None:
        """Adds the key and all aliases of this packet to the timeline."""
        entry, key = self._entries.setdefault(number, _IndexEntry()), ConnectionKey.of(packet)
        if key.is_tracked and self._by_key.get(key) != number:
            entry.keys = _add(self._by_key, entry.keys, key, number)
        for alias in self._aliases.of(packet):
            if self._by_alias.get(alias) != number and self._by_alias.get(back := reverse(alias)) != number:
                name = back if anywhere(back) in entry.aliases else alias
                for each in (name, anywhere(name)):
                    if self._by_alias.get(each) != number:
                        entry.aliases = _add(self._by_alias, entry.aliases, each, number)

    def remove(self, number: int) -> None:
        """Removes all keys and aliases of a timeline."""
        entry = self._entries.pop(number, _IndexEntry())
        for key in entry.keys:
            _remove(self._by_key, key, number)
        for alias in entry.aliases:
            _remove(self._by_alias, alias, number)

    def _with_alias(self, alias: Alias, key: ConnectionKey) -> Iterator[int]:
        """Yields the timeline of an alias in either direction, if it can be the timeline of that key."""
        for each in (alias, reverse(alias)):
            number = self._by_alias.get(each)
            if number is not None and not self._is_other_zone(number, key):
                yield number

    def _is_other_zone(self, number: int, key: ConnectionKey) -> bool:
        """Whether the namespace of this key tracks the timeline's connection in another zone."""
        return any(own.netns == key.netns and own.zone != key.zone for own in self._entries[number].keys)


def _add(numbers: dict[K, int], own: tuple[K, ...], name: K, number: int) -> tuple[K, ...]:
    """Adds a key or an alias to an index. Returns its timeline's own ones, of which the oldest gives way."""
    numbers[name] = number
    if name in own:  # another timeline had taken it over
        return own
    if len(own) >= MAX_KEYS:
        _remove(numbers, own[0], number)
        evictions.add("keys of timelines")
        own = own[1:]
    return own + (name,)  # noqa: RUF005


def _remove(numbers: dict[K, int], name: K, number: int) -> None:
    """Removes a key or an alias from an index, unless another timeline has taken it over."""
    if numbers.get(name) == number:
        del numbers[name]
