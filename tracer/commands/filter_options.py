# SPDX-License-Identifier: Apache-2.0
"""The filter that the options of a command ask for."""

from __future__ import annotations

from tracer.errors import BadOption
from tracer.model.filter import PROTOCOLS, Filter, parse_host


def wanted(
    ports: tuple[int, ...],
    hosts: tuple[str, ...],
    proto: str | None,
    family: int | None,
    iface: str | None,
    netns: str | None,
    drops_only: bool,
) -> Filter:
    """The filter that the options ask for. Raises BadOption for what does not exist."""
    from tracer.node.namespaces import Namespaces, interface_index

    namespaces = Namespaces()
    inode = namespaces.find(netns) if netns else 0
    if iface and inode and inode != namespaces.own:
        raise BadOption("--iface names an interface of this namespace; for another one give --netns alone.")
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
