"""Matches that can be computed exactly from what is known of the packet; the others are observed.

A match is one function here, found by its name and revision: it gets the match's data as the rule has it and the packet, and
says whether it matches, or None when it cannot tell. Structures: include/uapi/linux/netfilter/xt_*.h.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from tracer.rules.entry import Ext, Header

TCP, UDP, ICMP, ICMPV6 = 6, 17, 1, 58
_INV_IN, _INV_OUT, _INV_SRC, _INV_DST, _INV_FRAGMENT, _INV_PROTOCOL = 1, 2, 8, 16, 32, 64


@dataclass(frozen=True)
class Seen:
    """What is known of the packet while it was in the table.

    family: "ip" or "ip6". Addresses as numbers; in_face, out_face: interface names as the kernel has them, 16 bytes as a
    number. fragment: not the first one. sport, dport: of ICMP the type and code are icmp. mark: when the table began, None =
    not known.
    """

    family: str
    src: int
    dst: int
    in_face: int
    out_face: int
    protocol: int
    fragment: bool = False
    sport: int = 0
    dport: int = 0
    icmp: tuple[int, int] = (0, 0)
    tcp_flags: int = 0
    mark: int | None = 0


def header_matches(h: Header, p: Seen) -> bool:
    """As ip_packet_match and ip6_packet_match."""
    inv = h.inverted
    return (
        (p.src & h.src_mask == h.src) != bool(inv & _INV_SRC)
        and (p.dst & h.dst_mask == h.dst) != bool(inv & _INV_DST)
        and ((p.in_face ^ h.iniface) & h.in_mask == 0) != bool(inv & _INV_IN)
        and ((p.out_face ^ h.outiface) & h.out_mask == 0) != bool(inv & _INV_OUT)
        and (h.any_protocol or (p.protocol == h.protocol) != bool(inv & _INV_PROTOCOL))
        and not (h.fragment and p.fragment == bool(inv & _INV_FRAGMENT))
    )


def compute(match: Ext, p: Seen, mark: int | None) -> bool | None:
    """Whether the match is true; None when that cannot be computed. mark: at this moment, None when not known."""
    function = _COMPUTED.get((match.name, match.revision))
    return function(match.data, p, mark) if function else None


def _comment(data: bytes, p: Seen, mark: int | None) -> bool | None:
    return True


def _mark(data: bytes, p: Seen, mark: int | None) -> bool | None:
    value, mask, invert = struct.unpack_from("<IIB", data)
    return None if mark is None else bool((mark & mask == value) != bool(invert))


def _tcp(data: bytes, p: Seen, mark: int | None) -> bool | None:
    if p.fragment or p.protocol != TCP:
        return False
    s0, s1, d0, d1, option, mask, flags, inv = struct.unpack_from("<HHHHBBBB", data)
    if ((s0 <= p.sport <= s1) == bool(inv & 1)) or ((d0 <= p.dport <= d1) == bool(inv & 2)):
        return False
    if (p.tcp_flags & mask == flags) == bool(inv & 4):
        return False
    return None if option else True


def _udp(data: bytes, p: Seen, mark: int | None) -> bool | None:
    if p.fragment or p.protocol not in (UDP, 136):
        return False
    s0, s1, d0, d1, inv = struct.unpack_from("<HHHHB", data)
    return bool((s0 <= p.sport <= s1) != bool(inv & 1) and (d0 <= p.dport <= d1) != bool(inv & 2))


def _multiport(data: bytes, p: Seen, mark: int | None) -> bool | None:
    if p.fragment:
        return False
    which, count = data[0], data[1]
    ports, ranges, invert = struct.unpack_from("<15H", data, 2), data[32:47], bool(data[47])
    asked = {0: (p.sport,), 1: (p.dport,), 2: (p.sport, p.dport)}.get(which)
    if asked is None:
        return None
    i, found = 0, False
    while i < count:
        low = high = ports[i]
        if ranges[i] and i + 1 < count:
            i += 1
            high = ports[i]
        found = found or any(low <= port <= high for port in asked)
        i += 1
    return found != invert


def _icmp(data: bytes, p: Seen, mark: int | None) -> bool | None:
    if p.fragment or p.protocol != ICMP:
        return False
    kind, low, high, inv = data[:4]
    return (kind == 0xFF or (p.icmp[0] == kind and low <= p.icmp[1] <= high)) != bool(inv & 1)


def _icmp6(data: bytes, p: Seen, mark: int | None) -> bool | None:
    if p.fragment or p.protocol != ICMPV6:
        return False
    kind, low, high, inv = data[:4]
    return (p.icmp[0] == kind and low <= p.icmp[1] <= high) != bool(inv & 1)


_COMPUTED: dict[tuple[str, int], Callable[[bytes, Seen, int | None], bool | None]] = {
    ("comment", 0): _comment,
    ("mark", 1): _mark,
    ("tcp", 0): _tcp,
    ("udp", 0): _udp,
    ("multiport", 1): _multiport,
    ("icmp", 0): _icmp,
    ("icmp6", 0): _icmp6,
}


def mark_after(target: Ext, mark: int | None) -> int | None:
    """The packet's mark when the target has acted; None when not known."""
    if target.name == "MARK" and target.revision == 2 and mark is not None:
        value, mask = struct.unpack_from("<II", target.data)
        return int((mark & ~mask & 0xFFFFFFFF) ^ value)
    return mark if target.name in KEEPS_MARK else None


KEEPS_MARK = frozenset({
    "DNAT", "SNAT", "MASQUERADE", "REDIRECT", "NETMAP", "LOG", "NFLOG", "TRACE", "REJECT", "TCPMSS", "CT", "NOTRACK",
    "CLASSIFY", "DSCP", "TOS", "TTL", "HL", "TEE", "CHECKSUM", "RATEEST", "AUDIT", "SECMARK", "CONNSECMARK", "ECN", "NFQUEUE",
    "TCPOPTSTRIP", "IDLETIMER", "LED", "SYNPROXY",
})  # fmt: skip
"""Targets that leave the packet's mark as it is."""
