# SPDX-License-Identifier: Apache-2.0
"""Which node this is, and its own addresses: asked from the node itself."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from ipaddress import IPv6Address
from pathlib import Path

from tracer.kube.store import Store

IPVS_LINK = "kube-ipvs0"
_LOCAL = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")


def local_addresses(proc: Path = Path("/proc")) -> frozenset[str]:
    """The addresses of the node's network namespace (process 1's), or of this one where that cannot be read."""
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
    """The Services' addresses that kube-proxy's ipvs mode has given to an interface of this namespace; read over netlink."""
    try:
        index = socket.if_nametoindex(IPVS_LINK)
    except OSError:
        return frozenset()
    from pyroute2 import IPRoute

    with IPRoute() as route:
        found = [str(m.get_attr("IFA_ADDRESS")) for m in route.get_addr(index=index)]
    return frozenset(a for a in found if not a.startswith("fe80:"))


def name_of_node(store: Store, local: frozenset[str], environment: Mapping[str, str] = os.environ) -> str:
    """This node's name: $NODE_NAME, else the Node that has one of our addresses, else the one of our host name.

    Without any Node to compare with, the host name. "" when nodes are known and none is this one, or several are.
    """
    if environment.get("NODE_NAME"):
        return environment["NODE_NAME"]
    nodes = store.nodes.values()
    host = socket.gethostname().lower()
    ours = [n.name for n in nodes if local.intersection(n.addresses)]
    named = [n.name for n in nodes if n.name == host]
    if not nodes:
        return host
    return next((found[0] for found in (ours, named) if len(found) == 1), "")
