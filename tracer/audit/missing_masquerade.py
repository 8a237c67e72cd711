# SPDX-License-Identifier: Apache-2.0
"""A RETURN before MASQUERADE for the network of another node: requests from this node to its pods get no answer.

Many nodes have such a rule. It does no harm if kube-proxy's own rules masquerade before it. So the affected requests are
predicted: those to Services with pods in that network.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address, ip_network

from tracer.audit import _needs, _traffic
from tracer.audit._entry_points import EntryPoint, entry_points
from tracer.audit._senders import HERE, Sender, node_address
from tracer.audit._traffic import TrafficPath
from tracer.audit.state import NodeState
from tracer.findings.missing_masquerade import conflict, masquerades_behind, subnet_of
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.rule import Rule
from tracer.util.endpoint_format import format_endpoint

TUNNELS = frozenset({"vxlan", "ipip", "geneve", "wireguard", "tun", "gre", "sit", "ip6tnl"})
"""Kinds of interfaces that lead to other nodes only."""
MAX_ENTRY_POINTS = 200
"""Most addresses of Services that are predicted for each rule."""

NEEDS = (_needs.this_node, _needs.no_ipvs)


def check(state: NodeState) -> Iterator[Finding]:
    for rule, ruleset in state.rules():
        network = subnet_of(rule) if rule.table == "nat" or rule.table.startswith("flannel-") else ""
        if not network or rule.target.upper() != "RETURN" or not masquerades_behind(rule, ruleset):
            continue
        # The network's own address is that of a tunnel's end, so the route to its first machine is looked up.
        route = state.routes.to(str(ip_network(network)[1]))
        shown = [state.proof(rule, ruleset, state.owner(rule, ruleset).text)]
        if route.kind == "unicast":
            shown.append(FindingEvidence("route", f"{network} is reached {route.text}", "netlink"))
        elsewhere = any(link.name == route.out and link.kind in TUNNELS for link in state.routes.links())
        found = conflict(rule, ruleset, "the node's source address", shown, state.context, elsewhere)
        # If the network of this node is not known, the rule may be correct: each node has one.
        if found and found.certain:
            yield from _lost(state, rule, network, found)


def _lost(state: NodeState, rule: Rule, network: str, found: Finding) -> Iterator[Finding]:
    """The finding, if requests of the node keep its address because of this rule on all paths; only likely if on some."""
    candidates = [(door, way) for door in _entry_points_into(state, rule, network) for way in _paths(state, door, network)]
    kept = [(door, way) for door, way in candidates if way.is_met_by(rule) and not way.masqueraded]
    if not kept:
        return
    entry_point, path = kept[0]
    to = f"{path.predicted.packet.endpoints.src} -> {format_endpoint(entry_point.address, entry_point.port)}"
    to += f" (Service {entry_point.label})" if entry_point.label else ""
    after = path.predicted.packet.hops[-1]
    left = f", and leaves by {after.out_iface}" if after.out_iface else ""
    proof = FindingEvidence("packet", f"{to} goes to {path.target} with its source unchanged{left}", "derived")
    others = [w for d, w in candidates if d == entry_point]
    certain = all(w.is_met_by(rule) and not w.masqueraded for w in others)
    cause = found.cause if certain else found.cause.replace("Requests to pods", "Perhaps requests to pods", 1)
    yield replace(found, proofs=(*found.proofs, proof), certain=certain, cause=cause)


def _entry_points_into(state: NodeState, rule: Rule, network: str) -> Iterator[EntryPoint]:
    """The entry points of Services that may lead into the network."""
    family, whole = "ip6" if ":" in network else "ip", ip_network(network, strict=False)
    for count, entry_point in enumerate(entry_points(state, family)):
        if count >= MAX_ENTRY_POINTS:
            return
        if not entry_point.endpoints or any(ip_address(e) in whole for e in entry_point.endpoints):
            yield entry_point


def _paths(state: NodeState, entry_point: EntryPoint, network: str) -> Iterator[TrafficPath]:
    """The paths of the node's own request that lead into the network."""
    here = node_address(state, "ip6" if ":" in network else "ip")
    traffic = (
        _traffic.predict(state, Sender(HERE, here), entry_point.address, entry_point.port, entry_point.protocol)
        if here
        else None
    )
    for path in traffic.paths if traffic else ():
        if path.target and ip_address(path.target) in ip_network(network, strict=False):
            yield path
