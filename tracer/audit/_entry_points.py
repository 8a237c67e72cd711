# SPDX-License-Identifier: Apache-2.0
"""Where Services are asked for on this node: addresses and ports, from the API, or from the rules that a packet can get to."""

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
    """One address and port of a Service. label: of the Service port, "" when not known. endpoints: addresses behind it, by the
    API; () when not known or none.
    """

    address: str
    port: int
    protocol: str
    label: str = ""
    endpoints: tuple[str, ...] = ()


def doors(state: NodeState, family: str) -> Iterator[EntryPoint]:
    """Each once: cluster IPs and the other addresses of Services, and NodePorts at this node's address."""
    seen = set()
    here = node_address(state, family)
    for door in (*_by_api(state, here), *_by_rules(state), *_node_ports(state, here)):
        key = door.address, door.port, door.protocol
        if door.address and key not in seen and (":" in door.address) == (family == "ip6"):
            seen.add(key)
            yield door


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
