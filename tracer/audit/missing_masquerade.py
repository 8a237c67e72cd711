# SPDX-License-Identifier: Apache-2.0
"""A RETURN before MASQUERADE for a network that is another node's: requests from this node to its pods get no answer.

Such a rule is there on many nodes and does no harm where kube-proxy's own rules masquerade before it. So the requests that it
would be wrong for are asked about: those to Services with pods in that network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address, ip_network

from tracer.audit import _traffic
from tracer.audit._entry_points import EntryPoint, doors
from tracer.audit._senders import HERE, Sender, node_address
from tracer.audit._traffic import TrafficPath
from tracer.audit.state import NodeState
from tracer.findings.missing_masquerade import conflict, masquerades_behind, subnet_of
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.rule import Rule
from tracer.util.endpoint_format import format_endpoint

TUNNELS = frozenset({"vxlan", "ipip", "geneve", "wireguard", "tun", "gre", "sit", "ip6tnl"})
"""Kinds of interfaces that lead to other nodes only."""
MOST_DOORS = 200
"""So many addresses of Services are asked about for each rule."""


def check(state: NodeState) -> Iterator[Finding]:
    for rule, ruleset in state.rules():
        network = subnet_of(rule) if rule.table == "nat" or rule.table.startswith("flannel-") else ""
        if not network or rule.target.upper() != "RETURN" or not masquerades_behind(rule, ruleset):
            continue
        # The network's own address is that of a tunnel's end, so its first machine is asked for.
        route = state.routes.to(str(ip_network(network)[1]))
        shown = [state.proof(rule, ruleset, state.owner(rule, ruleset).text)]
        if route.kind == "unicast":
            shown.append(FindingEvidence("route", f"{network} is reached {route.text}", "netlink"))
        elsewhere = any(link.name == route.out and link.kind in TUNNELS for link in state.routes.links())
        found = conflict(rule, ruleset, "the node's source address", shown, state.context, elsewhere)
        # Where nobody knows which network is this node's, the rule may well be the right one: each node has one.
        if found and found.certain:
            yield from _lost(state, rule, network, found)


def _lost(state: NodeState, rule: Rule, network: str, found: Finding) -> Iterator[Finding]:
    """The finding, if requests of the node keep its address for this rule on all ways; only likely if on some."""
    asked = [(door, way) for door in _behind(state, rule, network) for way in _ways(state, door, network)]
    kept = [(door, way) for door, way in asked if way.met(rule) and not way.masqueraded]
    if not kept:
        return
    door, way = kept[0]
    to = f"{way.predicted.packet.endpoints.src} -> {format_endpoint(door.address, door.port)}"
    to += f" (Service {door.label})" if door.label else ""
    after = way.predicted.packet.hops[-1]
    left = f", and leaves by {after.out_iface}" if after.out_iface else ""
    proof = FindingEvidence("packet", f"{to} goes to {way.target} with its source unchanged{left}", "derived")
    of_door = [w for d, w in asked if d == door]
    certain = all(w.met(rule) and not w.masqueraded for w in of_door)
    cause = found.cause if certain else found.cause.replace("Requests to pods", "Perhaps requests to pods", 1)
    yield replace(found, proofs=(*found.proofs, proof), certain=certain, cause=cause)


def _behind(state: NodeState, rule: Rule, network: str) -> Iterator[EntryPoint]:
    """The addresses of Services that may lead into the network."""
    family, whole = "ip6" if ":" in network else "ip", ip_network(network, strict=False)
    for count, door in enumerate(doors(state, family)):
        if count >= MOST_DOORS:
            return
        if not door.endpoints or any(ip_address(e) in whole for e in door.endpoints):
            yield door


def _ways(state: NodeState, door: EntryPoint, network: str) -> Iterator[TrafficPath]:
    """The ways of the node's own request that lead into the network."""
    here = node_address(state, "ip6" if ":" in network else "ip")
    asked = _traffic.predict(state, Sender(HERE, here), door.address, door.port, door.protocol) if here else None
    for way in asked.ways if asked else ():
        if way.target and ip_address(way.target) in ip_network(network, strict=False):
            yield way
