# SPDX-License-Identifier: Apache-2.0
"""Addresses and ports of Services on this node, from the API and from the reachable rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tracer.audit._ports import node_ports
from tracer.audit._senders import node_address
from tracer.audit.state import NodeState
from tracer.kube.rule_text import destination, destination_ports, protocol

_SERVICE_IP = re.compile(r"([0-9a-f.:]+) \. (tcp|udp|sctp) \. (\d+)")


@dataclass(frozen=True)
class EntryPoint:
    """One address and port of a Service.

    Attributes:
        address: The address.
        port: The port.
        protocol: "tcp", "udp", "sctp".
        label: Label of the Service port, "" = not known.
        endpoints: Addresses of its ready endpoints from the API, () = none or not known.
    """

    address: str
    port: int
    protocol: str
    label: str = ""
    endpoints: tuple[str, ...] = ()


def entry_points(state: NodeState, family: str) -> Iterator[EntryPoint]:
    """All entry points, each once: cluster IPs and other addresses of Services, and NodePorts at this node's address."""
    seen = set()
    own_address = node_address(state, family)
    for entry_point in (*_by_api(state, own_address), *_by_rules(state), *_node_ports(state, own_address)):
        key = entry_point.address, entry_point.port, entry_point.protocol
        if entry_point.address and key not in seen and (":" in entry_point.address) == (family == "ip6"):
            seen.add(key)
            yield entry_point


def _by_api(state: NodeState, here: str) -> Iterator[EntryPoint]:
    store = state.cluster.store
    for port in dict.fromkeys(store.services.values()):
        ends = tuple(e.address for e in store.endpoints.all((port.label, port.protocol)) if e.ready)
        for address in (*port.cluster_ips, *port.external_ips, *port.balancer_ips):
            yield EntryPoint(address, port.port, port.protocol, port.label, ends)
        if port.node_port:
            yield EntryPoint(here, port.node_port, port.protocol, port.label, ends)


def _by_rules(state: NodeState) -> Iterator[EntryPoint]:
    for rule, ruleset in state.rules("KUBE-SERVICES"):
        ports = destination_ports(rule)
        if rule.table == "nat" and ports and destination(rule):
            yield EntryPoint(destination(rule), ports[0], protocol(rule) or "tcp", state.owner(rule, ruleset).label)
    nft = state.installed.nft
    for key in sorted(state.maps):
        found = nft.maps.get(key) if nft and key[1:] == ("kube-proxy", "service-ips") else None
        for element in found.elements.values() if found else ():
            match = _SERVICE_IP.match(element.text)
            if match:
                yield EntryPoint(match[1], int(match[3]), match[2])


def _node_ports(state: NodeState, here: str) -> Iterator[EntryPoint]:
    for claim in node_ports(state):
        yield EntryPoint(here, claim.port, claim.protocol, claim.owner.label)
