# SPDX-License-Identifier: Apache-2.0
"""What both back ends of iptables know of xtables extensions."""

from __future__ import annotations

NEVER = frozenset({
    "addrtype", "bpf", "cgroup", "cluster", "comment", "connbytes", "connlabel", "connmark", "conntrack", "cpu", "devgroup",
    "dscp", "helper", "hl", "iprange", "ipvs", "length", "limit", "mac", "mark", "nfacct", "owner", "physdev", "pkttype",
    "policy", "quota", "rateest", "realm", "rpfilter", "set", "socket", "state", "statistic", "string", "time", "tos", "ttl",
    "u32",
})  # fmt: skip
"""Matches that never set hotdrop. Any other may: ah, connlimit, dccp, esp, eui64, frag, hashlimit, hbh, ipcomp, mh, recent, rt,
sctp, tcpmss, and those that are not known here."""


def thrown_by(name: str) -> str:
    """The same of a match of which no more than its name is known."""
    return f"match {name} could not look into the packet (too short for it, or malformed) and threw it away"
