# SPDX-License-Identifier: Apache-2.0
"""The node's own addresses, read from the node itself."""

from __future__ import annotations

import re
import socket
from ipaddress import IPv6Address
from pathlib import Path

IPVS_LINK = "kube-ipvs0"
_LOCAL = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")


def local_addresses(proc: Path = Path("/proc")) -> frozenset[str]:
    """Addresses of the node's network namespace (process 1's), or of this process's if that cannot be read."""
    found: set[str] = set()
    for owner in ("1", "self"):
        try:
            found |= set(_LOCAL.findall((proc / owner / "net/fib_trie").read_text()))
            lines = (proc / owner / "net/if_inet6").read_text().split("\n")
            found |= {str(IPv6Address(bytes.fromhex(line.split()[0]))) for line in lines if line}
        except (OSError, ValueError):
            pass
        if found:
            break
    return frozenset(found)


def ipvs_addresses() -> frozenset[str]:
    """Service addresses that kube-proxy in ipvs mode has set on an interface of this namespace, read through netlink."""
    try:
        index = socket.if_nametoindex(IPVS_LINK)
    except OSError:
        return frozenset()
    from pyroute2 import IPRoute

    with IPRoute() as route:
        found = [str(m.get_attr("IFA_ADDRESS")) for m in route.get_addr(index=index)]
    return frozenset(a for a in found if not a.startswith("fe80:"))
