# SPDX-License-Identifier: Apache-2.0
"""Matches that can be computed exactly from the known fields of a packet; other matches are observed.

A match is one function here, found by its name and revision. It gets the match's data as the rule has it and the packet, and
returns whether it matches, None = not known. Structures: include/uapi/linux/netfilter/xt_*.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

from tracer.events.table_trace import Shape
from tracer.rules.iptables.conntrack import REVISIONS, conntrack_matches, port_ranges
from tracer.rules.iptables.entry import (
    INV_DST,
    INV_FRAGMENT,
    INV_IN,
    INV_OUT,
    INV_PROTOCOL,
    INV_SRC,
    Extension,
    TableHeader,
)
from tracer.rules.packet_view import PacketView
from tracer.rules.xt_options import multiport_parts

TCP, UDP, ICMP, ICMPV6 = 6, 17, 1, 58


def ends_match(h: TableHeader, p: PacketView) -> bool | None:
    """Whether a packet has the addresses and interfaces that a rule tests; None if an address is not known."""
    inv = h.inverted
    is_unsure = p.changed and (("src" in p.changed and h.src_mask) or ("dst" in p.changed and h.dst_mask))
    matched = (
        ("src" in p.changed or (p.src & h.src_mask == h.src) != bool(inv & INV_SRC))
        and ("dst" in p.changed or (p.dst & h.dst_mask == h.dst) != bool(inv & INV_DST))
        and ((p.in_face ^ h.iniface) & h.in_mask == 0) != bool(inv & INV_IN)
        and ((p.out_face ^ h.outiface) & h.out_mask == 0) != bool(inv & INV_OUT)
    )
    return None if matched and is_unsure else matched


def header_matches(h: TableHeader, p: PacketView) -> bool | None:
    """Computes ip_packet_match or ip6_packet_match; None if the protocol or an address is not known."""
    inv = h.inverted
    matched = ends_match(h, p)
    if matched is False or (h.fragment and p.fragment == bool(inv & INV_FRAGMENT)):
        return False
    if h.any_protocol:
        return matched
    if p.shape in (Shape.SHAPE_UNKNOWN, Shape.SHAPE_BROKEN):
        return None
    return matched if (p.protocol == h.protocol) != bool(inv & INV_PROTOCOL) else False


def compute(match: Extension, p: PacketView, mark: int | None) -> bool | None:
    """Whether the match is true; None if that cannot be computed. `mark`: the packet's mark at this rule, None = not known."""
    function = _COMPUTED.get((match.name, match.revision))
    if p.shape in _UNREAD_SHAPES and match.name in _TRANSPORT_MATCHES and not p.fragment:
        return None
    return function(match.data, p, mark) if function else None


_PORT_MATCHES = frozenset({"tcp", "udp", "multiport", "conntrack"})
_TRANSPORT_MATCHES = frozenset({"tcp", "udp", "multiport", "icmp", "icmp6"})
_UNREAD_SHAPES = frozenset({Shape.SHAPE_UNKNOWN, Shape.SHAPE_ELSEWHERE})


def _comment(data: bytes, p: PacketView, mark: int | None) -> bool | None:
    return True


def _mark(data: bytes, p: PacketView, mark: int | None) -> bool | None:
    value, mask, invert = struct.unpack_from("<IIB", data)
    return None if mark is None else bool((mark & mask == value) != bool(invert))


def _tcp(data: bytes, p: PacketView, mark: int | None) -> bool | None:
    if p.fragment or p.protocol != TCP:
        return False
    s0, s1, d0, d1, option, mask, flags, inv = struct.unpack_from("<HHHHBBBB", data)
    if ((s0 <= p.sport <= s1) == bool(inv & 1)) or ((d0 <= p.dport <= d1) == bool(inv & 2)):
        return False
    if "tcp_flags" in p.changed and mask & _ECN_FLAGS:
        return None
    if (p.tcp_flags & mask == flags) == bool(inv & 4):
        return False
    return None if option else True


_ECN_FLAGS = 0xC0
"""ECE and CWR, which target ECN clears."""


def _udp(data: bytes, p: PacketView, mark: int | None) -> bool | None:
    if p.fragment or p.protocol not in (UDP, 136):
        return False
    s0, s1, d0, d1, inv = struct.unpack_from("<HHHHB", data)
    return bool((s0 <= p.sport <= s1) != bool(inv & 1) and (d0 <= p.dport <= d1) != bool(inv & 2))


def _multiport(data: bytes, p: PacketView, mark: int | None) -> bool | None:
    if p.fragment:
        return False
    tested = {0: (p.sport,), 1: (p.dport,), 2: (p.sport, p.dport)}.get(data[0])
    if tested is None:
        return None
    found = any(low <= port <= high for low, high in _multiport_ranges(data) for port in tested)
    return found != bool(data[47])


def _multiport_ranges(data: bytes) -> list[tuple[int, int]]:
    """The lowest and the highest port of each range."""
    return [(part[0], part[-1]) for part in multiport_parts(data)]


class PortTest(NamedTuple):
    """A test that a match makes. place: of the port in PacketView.ports. low, high: range of ports."""

    place: int
    low: int
    high: int


_ALL_PORTS = (0, 65535)
_CONNECTION_PORTS = 2
"""Place of the first port of the connection in PacketView.ports."""


def port_tests(match: Extension) -> tuple[PortTest, ...]:
    """The tests of ports on which `compute` depends: two packets that answer them alike, and are else equal, match alike."""
    return _port_tests(match.name, match.revision, match.data) if match.name in _PORT_MATCHES else ()


@lru_cache(4096)
def _port_tests(name: str, revision: int, data: bytes) -> tuple[PortTest, ...]:
    if (name, revision) not in _COMPUTED:
        return ()
    if name == "multiport":
        places = {0: (0,), 1: (1,), 2: (0, 1)}.get(data[0], ())
        return tuple(PortTest(place, *ports) for place in places for ports in _multiport_ranges(data))
    if name == "conntrack":
        return tuple(PortTest(_CONNECTION_PORTS + place, low, high) for place, low, high in port_ranges(revision, data))
    s0, s1, d0, d1 = struct.unpack_from("<HHHH", data)
    return tuple(PortTest(place, *ports) for place, ports in ((0, (s0, s1)), (1, (d0, d1))) if ports != _ALL_PORTS)


def _icmp(data: bytes, p: PacketView, mark: int | None) -> bool | None:
    if p.fragment or p.protocol != ICMP:
        return False
    kind, low, high, inv = data[:4]
    return (kind == 0xFF or (p.icmp[0] == kind and low <= p.icmp[1] <= high)) != bool(inv & 1)


def _icmp6(data: bytes, p: PacketView, mark: int | None) -> bool | None:
    if p.fragment or p.protocol != ICMPV6:
        return False
    kind, low, high, inv = data[:4]
    return (p.icmp[0] == kind and low <= p.icmp[1] <= high) != bool(inv & 1)


def _conntrack(revision: int, data: bytes, p: PacketView, mark: int | None) -> bool | None:
    return conntrack_matches(revision, data, p)


_COMPUTED: dict[tuple[str, int], Callable[[bytes, PacketView, int | None], bool | None]] = {
    ("comment", 0): _comment,
    ("mark", 1): _mark,
    ("tcp", 0): _tcp,
    ("udp", 0): _udp,
    ("multiport", 1): _multiport,
    ("icmp", 0): _icmp,
    ("icmp6", 0): _icmp6,
    **{("conntrack", revision): partial(_conntrack, revision) for revision in REVISIONS},
}


def mark_after(target: Extension, mark: int | None) -> int | None:
    """The packet's mark after the target; None = not known."""
    if target.name == "MARK" and target.revision == 2 and mark is not None:
        value, mask = struct.unpack_from("<II", target.data)
        return int((mark & ~mask & 0xFFFFFFFF) ^ value)
    if target.name == "CONNMARK" and target.revision in _CONNMARK_MODE:
        return None if target.data[_CONNMARK_MODE[target.revision]] == _CONNMARK_RESTORE else mark
    if target.name == "SET" and target.revision in _SET_REVISIONS:
        (flags,) = struct.unpack_from("<I", target.data, _SET_FLAGS) if target.revision == 3 else (0,)
        return None if flags & _SET_MAPS_MARK else mark
    return mark if target.name in KEEPS_MARK else None


def mark_after_match(match: Extension, mark: int | None) -> int | None:
    """The packet's mark after a match that was true. Only `-m socket --restore-skmark` changes it, to that of the socket."""
    if match.name != "socket" or 0 <= match.revision < _SOCKET_FLAGS:
        return mark
    is_text = match.revision < 0
    restores = b"--restore-skmark" in match.data if is_text else match.data[0] & _RESTORE_SKMARK
    return None if restores else mark


def packet_after(target: Extension, packet: PacketView) -> PacketView:
    """The packet after a target that lets it continue, with the fields that are no longer known marked as changed."""
    changes = CHANGED_FIELDS.get(target.name)
    return replace(packet, changed=packet.changed | {changes}) if changes else packet


_CONNMARK_MODE, _CONNMARK_RESTORE = {1: 12, 2: 14}, 2
"""Offset of the mode in struct xt_connmark_tginfo1 and 2, and the mode that copies the connection's mark to the packet."""
_SET_REVISIONS, _SET_FLAGS, _SET_MAPS_MARK = range(4), 12, 1 << 8
"""struct xt_set_info_target_v3: three sets of 4 bytes, then the flags; IPSET_FLAG_MAP_SKBMARK."""
_SOCKET_FLAGS, _RESTORE_SKMARK = 3, 4
"""Revision 3 of match socket is the first that has XT_SOCKET_RESTORESKMARK."""
KEEPS_MARK = frozenset({
    "DNAT", "SNAT", "MASQUERADE", "REDIRECT", "NETMAP", "LOG", "NFLOG", "TRACE", "REJECT", "TCPMSS", "CT", "NOTRACK",
    "CLASSIFY", "DSCP", "TOS", "TTL", "HL", "TEE", "CHECKSUM", "RATEEST", "AUDIT", "SECMARK", "CONNSECMARK", "ECN", "NFQUEUE",
    "TCPOPTSTRIP", "IDLETIMER", "LED", "SYNPROXY", "DNPT", "SNPT",
})  # fmt: skip
"""Targets that do not change the packet's mark."""
CHANGED_FIELDS = {"DNPT": "dst", "SNPT": "src", "ECN": "tcp_flags"}
"""Targets that change a field used by later rules of the table and let the packet continue, with that field."""
