# SPDX-License-Identifier: Apache-2.0
"""Senders of packets: outside the node, the node itself, a pod. One address represents each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from tracer.audit.state import NodeState
from tracer.node.routes import NetworkDevice

OUTSIDE, HERE, POD = "outside", "the node", "a pod"
ANYWHERE = {"ip": "192.0.2.1", "ip6": "2001:db8::1"}
"""Documentation addresses (RFC 5737, RFC 3849), which only the default route leads to."""
MOST_TRIED = 64
"""Most addresses of a network that are tried."""


@dataclass(frozen=True)
class Sender:
    """A sender. `name`: OUTSIDE, HERE or POD. `address`: its source address."""

    name: str
    address: str


def node_address(state: NodeState, family: str) -> str:
    """The address by which other machines reach this node; "" = not known."""
    node = state.cluster.store.this_node()
    own = [a for a in (node.addresses if node else ()) if _is(a, family) and state.routes.is_local(a)]
    if own:
        return own[0]
    source = state.routes.to(ANYWHERE[family]).source
    if source:
        return source
    others = (a for a in sorted(state.cluster.local) if _is(a, family) and not ip_address(a).is_loopback)
    return next((a for a in others if a not in state.cluster.ipvs), "")


def senders(state: NodeState, family: str) -> list[Sender]:
    """The senders that are known on this node, each once."""
    found, here = [], node_address(state, family)
    outside = _outside(state, family, here)
    if outside:
        found.append(Sender(OUTSIDE, outside))
    if here:
        found.append(Sender(HERE, here))
    pod = next(_pods(state, family, outside), "")
    return [*found, Sender(POD, pod)] if pod else found


def _is(address: str, family: str) -> bool:
    return (":" in address) == (family == "ip6")


def _outside(state: NodeState, family: str, here: str) -> str:
    """The gateway of the default route, or a neighbour on the node's own network; "" = not known."""
    gateway = state.routes.to(ANYWHERE[family]).gateway
    if gateway:
        return gateway
    for link in state.routes.links():
        for network in (n for n in link.networks if here and _is(n, family) and ip_address(here) in ip_network(n)):
            found = _unused(state, network, link)
            if found:
                return found
    return ""


def _pods(state: NodeState, family: str, outside: str) -> Iterator[str]:
    """Addresses of pods on this node: on a bridge an unused one, for which no rule exists; else that of a pod."""
    for link in state.routes.links():
        for network in link.networks if link.kind == "bridge" else ():
            if _is(network, family) and not (outside and ip_address(outside) in ip_network(network)):
                found = _unused(state, network, link)
                if found:
                    yield found
    node, store = state.cluster.store.this_node(), state.cluster.store
    own = [a for s in state.cluster.sandboxes.every() for a in s.addresses]
    own += [a for pod in store.pods.values() if node and pod.node == node.name and not pod.host_network for a in pod.addresses]
    for address in dict.fromkeys(own):
        if _is(address, family) and state.routes.to(address).kind == "unicast":
            yield address


def _unused(state: NodeState, network: str, link: NetworkDevice) -> str:
    """An address of the network that is routed to this link and that no pod has; "" = none."""
    whole, store = ip_network(network), state.cluster.store
    for number in range(2, min(MOST_TRIED, whole.num_addresses)):
        address = str(whole[whole.num_addresses - number])
        used = store.by_pod_ip.all(address) or state.cluster.sandboxes.at(address)
        route = state.routes.to(address)
        if not used and route.kind == "unicast" and route.out == link.name:
            return address
    return ""
