# SPDX-License-Identifier: Apache-2.0
"""The state beside the packet that simulating a match needs: conntrack states, address types, sets, recent lists."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from typing import Protocol

from tracer.model.condition import Assumed
from tracer.rules.packet_view import PacketView

_UNSTABLE_MATCHES = frozenset({
    "limit", "hashlimit", "quota", "statistic", "recent", "connlimit", "nfacct", "bpf", "mark", "connmark", "",
})  # fmt: skip
"""Matches that may give another result when they are evaluated again for the same packet."""


def question_of(name: str, test: object, packet: PacketView) -> Hashable:
    """Key by which the same question is recognized again on a path.

    Args:
        name: Name of the match.
        test: What the match tests, as text or as the rule's data.
        packet: The packet; its mark is ignored.

    Returns:
        The key, or None if the match may give another result next time.
    """
    return None if name in _UNSTABLE_MATCHES else (name, test, replace(packet, mark=None))


def assumption(assumed: Assumed, question: Hashable) -> bool | None:
    """The answer that a path has assumed for a question; None if it has assumed none."""
    if question is None:
        return None
    return True if (question, True) in assumed else False if (question, False) in assumed else None


class MatchContext(Protocol):
    """Answers questions of matches about the state beside the packet.

    Attributes:
        states: States of conntrack, such as "NEW", "DNAT".
        assumed: Answers assumed on the path so far.
    """

    @property
    def states(self) -> frozenset[str]: ...

    @property
    def assumed(self) -> Assumed: ...

    def in_recent(self, name: str, address: str) -> bool | None:
        """Whether a list of -m recent has the address; None if that is not known, or the entry may be too old."""

    def by_bridge(self, face: str) -> bool | None:
        """Whether a packet from this interface ("" = none) came in by a bridge port; None if that is not known."""

    def type_of(self, address: str) -> str:
        """Type of an address as addrtype names it: LOCAL, UNICAST, BROADCAST, MULTICAST ...; "" if not known."""

    def in_set(self, name: str, flags: tuple[str, ...], packet: PacketView) -> bool | None:
        """Whether an ipset has the packet's address or port, by flags "src" and "dst"; None if that is not known."""


def address_text(number: int, family: str) -> str:
    """An address as text. `family`: "ip" or "ip6"."""
    return str(IPv4Address(number) if family == "ip" else IPv6Address(number))
