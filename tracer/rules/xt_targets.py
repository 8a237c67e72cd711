# SPDX-License-Identifier: Apache-2.0
"""Properties of xtables extensions, shared by both back ends of iptables."""

from __future__ import annotations

NO_HOTDROP_MATCHES = frozenset({
    "addrtype", "bpf", "cgroup", "cluster", "comment", "connbytes", "connlabel", "connmark", "conntrack", "cpu", "devgroup",
    "dscp", "helper", "hl", "iprange", "ipvs", "length", "limit", "mac", "mark", "nfacct", "owner", "physdev", "pkttype",
    "policy", "quota", "rateest", "realm", "rpfilter", "set", "socket", "state", "statistic", "string", "time", "tos", "ttl",
    "u32",
})  # fmt: skip
"""Matches that never set hotdrop. Any other may: ah, connlimit, dccp, esp, eui64, frag, hashlimit, hbh, ipcomp, mh, recent, rt,
sctp, tcpmss, and matches that are not listed here."""


def hotdrop_clause(name: str) -> str:
    """Why a match set hotdrop, as a clause, where only its name is known."""
    return f"match {name} could not look into the packet (too short for it, or malformed) and threw it away"
