# SPDX-License-Identifier: Apache-2.0
"""The values that expressions load: keys of `meta` and `ct`, and fields of headers, with nft's names, types and sizes."""

from __future__ import annotations

from tracer.rules.nftables.data_types import (
    BOOLEAN,
    CT_DIRECTION,
    CT_STATE,
    CT_STATUS,
    ETHERTYPE,
    HOST_NUMBER,
    ICMP_CODE,
    ICMP_TYPE,
    ICMPV6_CODE,
    ICMPV6_TYPE,
    IFNAME,
    IPV4,
    IPV6,
    LINK_ADDRESS,
    MARK,
    NFPROTO,
    NUMBER,
    PKTTYPE,
    PORT,
    PROTOCOL,
    TCP_FLAG,
)

META: dict[int, tuple[str, int]] = {
    0: ("length", HOST_NUMBER), 1: ("protocol", ETHERTYPE), 2: ("priority", HOST_NUMBER), 3: ("mark", MARK),
    4: ("iif", HOST_NUMBER),
    5: ("oif", HOST_NUMBER), 6: ("iifname", IFNAME), 7: ("oifname", IFNAME), 8: ("iiftype", HOST_NUMBER),
    9: ("oiftype", HOST_NUMBER), 10: ("skuid", HOST_NUMBER), 11: ("skgid", HOST_NUMBER), 12: ("nftrace", NUMBER),
    13: ("rtclassid", HOST_NUMBER), 15: ("nfproto", NFPROTO), 16: ("l4proto", PROTOCOL), 17: ("ibrname", IFNAME),
    18: ("obrname", IFNAME), 19: ("pkttype", PKTTYPE), 20: ("cpu", HOST_NUMBER), 21: ("iifgroup", HOST_NUMBER),
    22: ("oifgroup", HOST_NUMBER), 23: ("cgroup", HOST_NUMBER), 24: ("random", NUMBER), 25: ("ipsec", BOOLEAN),
    26: ("iifkind", IFNAME), 27: ("oifkind", IFNAME), 33: ("sdif", HOST_NUMBER), 34: ("sdifname", IFNAME),
}  # fmt: skip
"""Name and type of the values of `meta`, by key."""
META_SIZES = {1: 2, 12: 1, 15: 1, 16: 1, 19: 1, 8: 2, 9: 2, 25: 1, **dict.fromkeys((6, 7, 17, 18, 26, 27, 34), 16)}
"""Sizes in bytes, where they are not 4."""
CT: dict[int, tuple[str, int, int]] = {
    0: ("state", CT_STATE, 4), 1: ("direction", CT_DIRECTION, 1), 2: ("status", CT_STATUS, 4), 3: ("mark", MARK, 4),
    5: ("expiration", HOST_NUMBER, 4), 6: ("helper", IFNAME, 16), 7: ("l3proto", NFPROTO, 1), 10: ("protocol", PROTOCOL, 1),
    11: ("proto-src", PORT, 2), 12: ("proto-dst", PORT, 2), 14: ("packets", HOST_NUMBER, 8), 15: ("bytes", HOST_NUMBER, 8),
    16: ("avgpkt", HOST_NUMBER, 8), 17: ("zone", HOST_NUMBER, 2), 19: ("ip saddr", IPV4, 4), 20: ("ip daddr", IPV4, 4),
    21: ("ip6 saddr", IPV6, 16), 22: ("ip6 daddr", IPV6, 16), 23: ("id", HOST_NUMBER, 4),
}  # fmt: skip
"""Name, type and size of the values of `ct`, by key."""
FIELDS: dict[str, tuple[tuple[int, int, str, int], ...]] = {
    "ether": ((0, 6, "daddr", LINK_ADDRESS), (6, 6, "saddr", LINK_ADDRESS), (12, 2, "type", ETHERTYPE)),
    "ip": ((2, 2, "length", NUMBER), (4, 2, "id", NUMBER), (8, 1, "ttl", NUMBER), (9, 1, "protocol", PROTOCOL),
           (10, 2, "checksum", NUMBER), (12, 4, "saddr", IPV4), (16, 4, "daddr", IPV4)),
    "ip6": ((4, 2, "length", NUMBER), (6, 1, "nexthdr", PROTOCOL), (7, 1, "hoplimit", NUMBER), (8, 16, "saddr", IPV6),
            (24, 16, "daddr", IPV6)),
    "tcp": ((0, 2, "sport", PORT), (2, 2, "dport", PORT), (4, 4, "sequence", NUMBER), (8, 4, "ackseq", NUMBER),
            (13, 1, "flags", TCP_FLAG), (14, 2, "window", NUMBER), (16, 2, "checksum", NUMBER), (18, 2, "urgptr", NUMBER)),
    "udp": ((0, 2, "sport", PORT), (2, 2, "dport", PORT), (4, 2, "length", NUMBER), (6, 2, "checksum", NUMBER)),
    "icmp": ((0, 1, "type", ICMP_TYPE), (1, 1, "code", ICMP_CODE), (2, 2, "checksum", NUMBER), (4, 2, "id", NUMBER),
             (6, 2, "sequence", NUMBER)),
    "icmpv6": ((0, 1, "type", ICMPV6_TYPE), (1, 1, "code", ICMPV6_CODE), (2, 2, "checksum", NUMBER), (4, 2, "id", NUMBER),
               (6, 2, "sequence", NUMBER)),
    **dict.fromkeys(("th", "sctp", "dccp", "udplite"), ((0, 2, "sport", PORT), (2, 2, "dport", PORT))),
}  # fmt: skip
"""Header fields: offset and size in bytes, name, type."""
