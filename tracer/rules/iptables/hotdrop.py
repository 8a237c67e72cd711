# SPDX-License-Identifier: Apache-2.0
"""Matches that set `hotdrop`: the table then drops the packet at that rule, whatever the rule's target is.

A match sets it for a packet that is too short for it, or malformed. What the kernel computes from the header (tcp, udp,
multiport, icmp, and the search for the protocol in ip6_packet_match) is also computed here. For other matches the probe reads
the flag (bpf/probes/iptables_extensions.h).
"""

from __future__ import annotations

from collections.abc import Callable

from tracer.events.table_trace import Shape
from tracer.rules.iptables.entry import Extension, TableHeader
from tracer.rules.iptables.matches import compute, ends_match
from tracer.rules.packet_view import PacketView
from tracer.rules.xt_targets import NO_HOTDROP_MATCHES, hotdrop_clause

HEADERS_END = "the packet's IPv6 extension headers end too early (malformed), so no rule with a protocol can look at it"
_NO_HEADER = frozenset({Shape.SHAPE_NO_HEADER, Shape.SHAPE_NO_PORTS})
_TCP_OPTION = 8
"""Offset in the data of match tcp of the TCP option that it tests; the value 0 = none."""


def hotdrop_reason(match: Extension, packet: PacketView) -> str:
    """Why a match set hotdrop, as a clause."""
    if match.name == "tcp" and packet.fragment:
        return "the packet is a fragment that begins inside its TCP header, which match tcp does not let through (malformed)"
    if (match.name, match.revision) in _COMPUTED:
        return f"the packet is too short for match {match.name} (malformed)"
    return hotdrop_clause(match.name)


def header_sets_hotdrop(header: TableHeader, packet: PacketView) -> bool | None:
    """Whether the protocol search in ip6_packet_match sets hotdrop for an IPv6 packet at this rule; None = not known."""
    broken = packet.shape == Shape.SHAPE_BROKEN and packet.family == "ip6" and not header.any_protocol
    return broken and ends_match(header, packet)


def sets_hotdrop(match: Extension, packet: PacketView) -> bool | None:
    """Whether a match without a watched function sets hotdrop; None = not known."""
    function = _COMPUTED.get((match.name, match.revision))
    if function:
        return None if packet.shape == Shape.SHAPE_UNKNOWN else function(match, packet)
    return False if match.name in NO_HOTDROP_MATCHES else None


def _tcp(match: Extension, packet: PacketView) -> bool | None:
    if packet.fragment:
        return packet.family == "ip" and packet.shape == Shape.SHAPE_OFFSET_8
    if packet.shape in _NO_HEADER:
        return True
    if not match.data[_TCP_OPTION]:
        return False
    if packet.shape == Shape.SHAPE_ELSEWHERE:
        return None
    # The ports and flags are tested before the options: None means that only the options are left.
    return packet.shape == Shape.SHAPE_NO_OPTIONS and compute(match, packet, None) is None


def _short_header(match: Extension, packet: PacketView) -> bool | None:
    return not packet.fragment and packet.shape in _NO_HEADER


def _multiport(match: Extension, packet: PacketView) -> bool | None:
    return not packet.fragment and packet.shape == Shape.SHAPE_NO_PORTS


_COMPUTED: dict[tuple[str, int], Callable[[Extension, PacketView], bool | None]] = {
    ("tcp", 0): _tcp,
    ("udp", 0): _short_header,
    ("icmp", 0): _short_header,
    ("icmp6", 0): _short_header,
    ("multiport", 1): _multiport,
}
