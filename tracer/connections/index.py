# SPDX-License-Identifier: Apache-2.0
"""Which timeline a packet belongs to: what leads to it, and how sure that is.

conntrack's identity leads first: original tuple, zone, namespace. Packets that conntrack does not know, and what several
namespaces track each for itself, are led by their ends: every pair of ends that a packet of the connection had, before and
after each translation. An ICMP error is led by the connection that it quotes.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracer.handshakes.correlator import ends_of
from tracer.model.packet import Endpoints, Packet
from tracer.model.timeline import ConnectionKey

CONNECTION_PROTOCOLS = ("TCP", "UDP", "SCTP", "DCCP", "UDPLITE")
BY_ENDS = "joined by its addresses"
"""The remark of a packet that conntrack does not know."""

Alias = tuple[str, Endpoints]


class ConnectionIndex:
    """Numbers of timelines by whatever leads to them."""

    def __init__(self) -> None:
        self._by_identity: dict[ConnectionKey, int] = {}
        self._by_alias: dict[Alias, int] = {}
        self._of: dict[int, list[ConnectionKey | Alias]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def numbers(self, packet: Packet) -> Iterator[tuple[int, str]]:
        """The timelines that a packet may be of, the surest first; each with a remark where it is derived."""
        flow = packet.flow
        if flow and packet.protocol.startswith("ICMP") and flow.state == "RELATED":
            for protocol in CONNECTION_PROTOCOLS:
                number = self._by_identity.get(ConnectionKey(protocol, flow.orig, flow.zone, flow.netns))
                if number is not None:
                    yield number, ""
            return
        if flow:
            number = self._by_identity.get(identity_of(packet))
            if number is not None:
                yield number, ""
        for ends in (packet.endpoints, *ends_of(packet)):
            for alias in ((packet.protocol, ends), (packet.protocol, ends.reversed)):
                number = self._by_alias.get(alias)
                if number is not None:
                    yield number, "" if flow else BY_ENDS

    def of_entry(self, key: ConnectionKey) -> int | None:
        """The timeline of a conntrack entry."""
        number = self._by_identity.get(key)
        return self._by_alias.get((key.protocol, key.orig)) if number is None else number

    def has(self, number: int, protocol: str, ends: Endpoints) -> bool:
        """Whether these ends, in this direction, lead to that timeline."""
        return self._by_alias.get((protocol, ends)) == number

    def learn(self, number: int, key: ConnectionKey, packet: Packet) -> None:
        """From now on everything that this packet had leads to the timeline. identity: the timeline's own."""
        leads = self._of.setdefault(number, [])
        for each in (key, identity_of(packet)):
            if self._by_identity.get(each) != number:
                self._by_identity[each] = number
                leads.append(each)
        for ends in ends_of(packet):
            if not self.has(number, packet.protocol, ends) and not self.has(number, packet.protocol, ends.reversed):
                alias = packet.protocol, ends
                self._by_alias[alias] = number
                leads.append(alias)

    def forget(self, number: int) -> None:
        """Nothing leads to that timeline any more."""
        for lead in self._of.pop(number, ()):
            if isinstance(lead, ConnectionKey):
                if self._by_identity.get(lead) == number:
                    del self._by_identity[lead]
            elif self._by_alias.get(lead) == number:
                del self._by_alias[lead]


def identity_of(packet: Packet) -> ConnectionKey:
    """By conntrack where it knows the packet, else by its own ends."""
    flow = packet.flow
    if not flow:
        return ConnectionKey(packet.protocol, packet.endpoints)
    return ConnectionKey(packet.protocol, flow.orig, flow.zone, flow.netns)
