# SPDX-License-Identifier: Apache-2.0
"""nft's data types: the bytes of a value in a register or an element, as `nft -j` writes them.

A type is a number (TYPE_* in nft); a concatenation has six bits for each part. Numbers in packets are in network order, numbers
that the kernel computes (marks, states, random numbers) in the order of this machine.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable, Sequence

from tracer.util.json_value import Json
from tracer.util.octets import decoded

ICMP_CODE, ICMPV6_CODE, ICMPX_CODE, IFINDEX = 32, 33, 34, 20
NFPROTO, BITMASK, INTEGER, IPV4, IPV6, ETHERTYPE, PROTOCOL, PORT, MARK = 2, 3, 4, 7, 8, 10, 12, 13, 19
ICMP_TYPE, TCP_FLAG, CT_STATE, CT_DIRECTION, CT_STATUS, ICMPV6_TYPE, PKTTYPE, FIB_TYPE, BOOLEAN, IFNAME = (
    14, 15, 26, 27, 28, 29, 31, 38, 39, 41,
)  # fmt: skip
LINK_ADDRESS, STRING, NUMBER, HOST_NUMBER = 9, 5, 64, 65
"""NUMBER and HOST_NUMBER are no types of nft: an integer in network order, and one in this machine's."""
SIZES = {NFPROTO: 1, IPV4: 4, IPV6: 16, LINK_ADDRESS: 6, ETHERTYPE: 2, PROTOCOL: 1, PORT: 2, ICMP_TYPE: 1, TCP_FLAG: 1, MARK: 4,
         IFINDEX: 4, CT_STATE: 4, CT_DIRECTION: 1, CT_STATUS: 4, ICMPV6_TYPE: 1, PKTTYPE: 1, ICMP_CODE: 1, ICMPV6_CODE: 1,
         ICMPX_CODE: 1, FIB_TYPE: 4, BOOLEAN: 1, IFNAME: 16}  # fmt: skip
"""Bytes of a type. INTEGER and types that are not here have no fixed size."""
BIT_TYPES = frozenset({BITMASK, TCP_FLAG, CT_STATE, CT_STATUS})
"""Types of which the values are sets of flags."""
_HOST_ORDER = frozenset({MARK, IFINDEX, CT_STATE, CT_STATUS, FIB_TYPE, HOST_NUMBER})
_ICMP = {0: "echo-reply", 3: "destination-unreachable", 4: "source-quench", 5: "redirect", 8: "echo-request",
         9: "router-advertisement", 10: "router-solicitation", 11: "time-exceeded", 12: "parameter-problem",
         13: "timestamp-request", 14: "timestamp-reply", 15: "info-request", 16: "info-reply", 17: "address-mask-request",
         18: "address-mask-reply"}  # fmt: skip
_ICMPV6 = {1: "destination-unreachable", 2: "packet-too-big", 3: "time-exceeded", 4: "parameter-problem", 128: "echo-request",
           129: "echo-reply", 130: "mld-listener-query", 131: "mld-listener-report", 132: "mld-listener-done",
           133: "nd-router-solicit", 134: "nd-router-advert", 135: "nd-neighbor-solicit", 136: "nd-neighbor-advert",
           137: "nd-redirect", 138: "router-renumbering", 141: "ind-neighbor-solicit", 142: "ind-neighbor-advert",
           143: "mld2-listener-report"}  # fmt: skip
_NAMES: dict[int, dict[int, str]] = {
    NFPROTO: {2: "ipv4", 10: "ipv6"},
    ETHERTYPE: {0x0800: "ip", 0x0806: "arp", 0x86DD: "ip6", 0x8100: "8021q", 0x88A8: "8021ad"},
    PROTOCOL: {1: "icmp", 2: "igmp", 6: "tcp", 17: "udp", 33: "dccp", 50: "esp", 51: "ah", 58: "ipv6-icmp", 108: "comp",
               132: "sctp", 136: "udplite"},
    ICMP_CODE: {0: "net-unreachable", 1: "host-unreachable", 2: "prot-unreachable", 3: "port-unreachable", 4: "frag-needed",
                9: "net-prohibited", 10: "host-prohibited", 13: "admin-prohibited"},
    ICMPV6_CODE: {0: "no-route", 1: "admin-prohibited", 3: "addr-unreachable", 4: "port-unreachable", 5: "policy-fail",
                  6: "reject-route"},
    ICMPX_CODE: {0: "no-route", 1: "port-unreachable", 2: "host-unreachable", 3: "admin-prohibited"},
    ICMP_TYPE: _ICMP,
    ICMPV6_TYPE: _ICMPV6,
    CT_DIRECTION: {0: "original", 1: "reply"},
    PKTTYPE: {0: "host", 1: "broadcast", 2: "multicast", 3: "other"},
    FIB_TYPE: {0: "unspec", 1: "unicast", 2: "local", 3: "broadcast", 4: "anycast", 5: "multicast", 6: "blackhole",
               7: "unreachable", 8: "prohibit"},
}  # fmt: skip
_BITS: dict[int, tuple[tuple[int, str], ...]] = {
    CT_STATE: ((1, "invalid"), (2, "established"), (4, "related"), (8, "new"), (64, "untracked")),
    CT_STATUS: (
        (1, "expected"),
        (2, "seen-reply"),
        (4, "assured"),
        (8, "confirmed"),
        (16, "snat"),
        (32, "dnat"),
        (512, "dying"),
    ),
    TCP_FLAG: ((1, "fin"), (2, "syn"), (4, "rst"), (8, "psh"), (16, "ack"), (32, "urg"), (64, "ecn"), (128, "cwr")),
}


def types_of(key_type: int) -> list[int]:
    """The types of the parts of a key."""
    found: list[int] = []
    while key_type:
        found.insert(0, key_type & 63)
        key_type >>= 6
    return found


def padded(size: int) -> int:
    """Size of a part of a concatenation: whole registers of 4 bytes."""
    return (size + 3) & ~3


def as_integer(kind: int, raw: bytes) -> int:
    """The number in the bytes of a value."""
    return int.from_bytes(raw, "little" if kind in _HOST_ORDER and sys.byteorder == "little" else "big")


def value(kind: int, raw: bytes) -> Json:
    """One value as `nft -j` writes it. A number for which nft has a name that is not known here stays a number."""
    if kind == IPV4 and len(raw) == 4:
        return socket.inet_ntop(socket.AF_INET, raw)
    if kind == IPV6 and len(raw) == 16:
        return socket.inet_ntop(socket.AF_INET6, raw)
    if kind == LINK_ADDRESS:
        return raw.hex(":")
    if kind in (IFNAME, STRING):
        # A name without its final zero byte is the beginning of names.
        name, end, _ = raw.partition(b"\0")
        return decoded(name) if end or len(raw) == 16 else decoded(name) + "*"
    if kind == BOOLEAN:
        return any(raw)
    number = as_integer(kind, raw)
    if kind in _BITS:
        names: list[Json] = [name for bit, name in _BITS[kind] if number & bit]
        is_whole = sum(bit for bit, _ in _BITS[kind] if number & bit) == number
        return number if not is_whole or not names else names[0] if len(names) == 1 else names
    return _NAMES.get(kind, {}).get(number, number)


def split(types: Sequence[int], raw: bytes, sizes: Sequence[int] = ()) -> list[tuple[int, bytes]] | None:
    """(type, bytes) of each part of a concatenated key. None = the size of a part is not known."""
    if len(types) == 1:
        return [(types[0], raw[: SIZES.get(types[0], len(raw))])]
    found, at = [], 0
    for place, kind in enumerate(types):
        size = sizes[place] if place < len(sizes) and sizes[place] else SIZES.get(kind, 0)
        if not size:
            return None
        found.append((kind, raw[at : at + size]))
        at += padded(size)
    return found


def concatenation(parts: Iterable[Json]) -> Json:
    """The parts of a key as `nft -j` writes them."""
    each = list(parts)
    return each[0] if len(each) == 1 else {"concat": each}


def prefix_or_range(kind: int, first: bytes, last: bytes) -> Json:
    """A range of values as `nft -j` writes it: one value, a prefix of an address, or both ends."""
    if first == last:
        return value(kind, first)
    low, high = int.from_bytes(first, "big"), int.from_bytes(last, "big")
    bits = (low ^ high).bit_length()
    if kind in (IPV4, IPV6) and low & ((1 << bits) - 1) == 0 and high == low | ((1 << bits) - 1):
        return {"prefix": {"addr": value(kind, first), "len": 8 * len(first) - bits}}
    return {"range": [value(kind, first), value(kind, last)]}
