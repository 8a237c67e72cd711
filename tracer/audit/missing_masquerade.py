"""A RETURN before MASQUERADE for a network that is another node's: requests from this node to its pods get no answer."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network

from tracer.audit.state import State
from tracer.findings.missing_masquerade import conflict, masquerades_behind, subnet_of
from tracer.findings.model import Finding, Proof

TUNNELS = frozenset({"vxlan", "ipip", "geneve", "wireguard", "tun", "gre", "sit", "ip6tnl"})
"""Kinds of interfaces that lead to other nodes only."""


def check(state: State) -> Iterator[Finding]:
    for rule, ruleset in state.rules():
        network = subnet_of(rule) if rule.table == "nat" or rule.table.startswith("flannel-") else ""
        if not network or rule.target.upper() != "RETURN" or not masquerades_behind(rule, ruleset):
            continue
        # The network's own address is that of a tunnel's end, so its first machine is asked for.
        route = state.routes.to(str(ip_network(network)[1]))
        shown = [state.proof(rule, ruleset, state.owner(rule, ruleset).text)]
        if route.kind == "unicast":
            shown.append(Proof("route", f"{network} is reached {route.text}", "netlink"))
        elsewhere = any(link.name == route.out and link.kind in TUNNELS for link in state.routes.links())
        found = conflict(rule, ruleset, "the node's source address", shown, state.context, elsewhere)
        # Where nobody knows which network is this node's, the rule may well be the right one: each node has one.
        if found and found.certain:
            yield found
