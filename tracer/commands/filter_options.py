# SPDX-License-Identifier: Apache-2.0
"""Makes the packet filter from command-line options."""

from __future__ import annotations

from tracer.errors import BadOption
from tracer.model.filter import PROTOCOLS, Filter, parse_host


def packet_filter(
    ports: tuple[int, ...],
    hosts: tuple[str, ...],
    proto: str | None,
    family: int | None,
    iface: str | None,
    netns: str | None,
    drops_only: bool,
) -> Filter:
    """Makes the filter. Raises BadOption for an unknown interface or namespace."""
    from tracer.node.namespaces import Namespaces, interface_index

    namespaces = Namespaces()
    inode = namespaces.find(netns) if netns else 0
    if iface and inode and inode != namespaces.own:
        raise BadOption("--iface needs an interface of the current namespace: for another namespace, use --netns alone.")
    return Filter(
        ports=ports,
        hosts=tuple(parse_host(h) for h in hosts),
        protocol=PROTOCOLS[proto] if proto else 0,
        family=family or 0,
        netns=inode,
        ifindex=interface_index(iface) if iface else 0,
        if_netns=namespaces.own if iface else 0,
        drops_only=drops_only,
    )
