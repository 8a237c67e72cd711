# SPDX-License-Identifier: Apache-2.0
"""What the simulation of a match asks beside the packet: conntrack states, address types, sets, recent lists."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from typing import Protocol

from tracer.model.condition import Assumed
from tracer.rules.packet_view import PacketView

_CHANGES = frozenset({
    "limit", "hashlimit", "quota", "statistic", "recent", "connlimit", "nfacct", "bpf", "mark", "connmark", "",
})  # fmt: skip
"""Matches that may answer otherwise when they are asked again about the same packet."""


def question_of(name: str, asks: object, packet: PacketView) -> Hashable:
    """What a match was asked, to be known again on the same way; None when it may answer otherwise another time.

    asks: what it asks for, in words or as the rule's data.
    """
    return None if name in _CHANGES else (name, asks, replace(packet, mark=None))


def assumption(assumed: Assumed, question: Hashable) -> bool | None:
    """What a way has taken the answer to a question for; None when it has not been asked."""
    if question is None:
        return None
    return True if (question, True) in assumed else False if (question, False) in assumed else None


class MatchContext(Protocol):
    """What matches ask beside the packet. states: of conntrack, as "NEW", "DNAT". assumed: on the way so far."""

    @property
    def states(self) -> frozenset[str]: ...

    @property
    def assumed(self) -> Assumed: ...

    def in_recent(self, name: str, address: str) -> bool | None:
        """Whether a list of -m recent has the address; None when that cannot be told, or it may be too old."""

    def by_bridge(self, face: str) -> bool | None:
        """Whether a packet that came in by this interface ("" = none) came by a bridge's port; None when it cannot be told."""

    def type_of(self, address: str) -> str:
        """As addrtype calls it: LOCAL, UNICAST, BROADCAST, MULTICAST ...; "" when not known."""

    def in_set(self, name: str, flags: tuple[str, ...], packet: PacketView) -> bool | None:
        """Whether an ipset has the packet's address or port, by flags "src" and "dst"; None when that cannot be told."""


def address_text(number: int, family: str) -> str:
    return str(IPv4Address(number) if family == "ip" else IPv6Address(number))
