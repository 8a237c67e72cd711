# SPDX-License-Identifier: Apache-2.0
"""What a view of a packet shows of a Service: which one was asked, what the rules of the node did, and where endpoints are."""

from __future__ import annotations

import re
from typing import NamedTuple

from tracer.cluster_findings.cluster_context import ClusterContext, ServiceKey
from tracer.cluster_findings.endpoint_history import is_of_family
from tracer.joining.traced_nodes import TracedNodes
from tracer.kube import missing_endpoints
from tracer.model.hop import (
    ChainHop,
    DecidingHop,
    HandshakeHop,
    IpvsNatHop,
    IpvsRefusalHop,
    NatHop,
    RewriteHop,
    SocketHop,
    TableHop,
    decision_of,
    trace_of,
)
from tracer.model.kube import Endpoint, Owner, ServicePort
from tracer.model.namespace_name import is_host
from tracer.model.netfilter import REFUSALS, Hook, Verdict
from tracer.model.packet import Outcome, Packet
from tracer.packets.outcome import BAD

CLUSTER_IP = "cluster IP"
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")


class EndpointChoice(NamedTuple):
    """The rules of a node chose an endpoint of a Service for a new connection.

    Attributes:
        service: The Service port.
        hop: The translation.
        address: Address of the endpoint.
        port: Port of the endpoint.
    """

    service: ServicePort
    hop: NatHop | IpvsNatHop
    address: str
    port: int


class EndpointPlaces(NamedTuple):
    """Where the endpoints of a Service port are.

    Attributes:
        here: Those of one node, also those that are not ready.
        elsewhere: The ready ones of other nodes.
        asked: When the API was asked, ns, of the reference clock; 0 = when the run began.
    """

    here: tuple[Endpoint, ...]
    elsewhere: tuple[Endpoint, ...]
    asked: int


def key_of(service: ServicePort, family: str) -> ServiceKey:
    """The key of a Service port in one family of addresses."""
    return ServiceKey(service.label, service.protocol, family)


def is_new(packet: Packet) -> bool:
    """Whether a packet is the first one of its connection, or the first one again."""
    if packet.protocol == "TCP":
        return packet.tcp_flags == "SYN"
    return packet.flow is None or (packet.flow.state == "NEW" and not packet.flow.is_reply)


def is_of(owner: Owner | None, service: ServicePort) -> bool:
    """Whether an owner is a Service. The comment of a rule may name the Service without its port."""
    return owner is not None and (owner.kind, owner.namespace, owner.name) == ("Service", service.namespace, service.name)


def choice_of(packet: Packet, nodes: TracedNodes) -> EndpointChoice | None:
    """The endpoint that rules of a Service, or IPVS, chose for this packet; None = they did not, or it is not known.

    A translation that an earlier packet of the connection decided is none: its rules may be gone.
    """
    for hop in packet.hops:
        if hop.clone or not is_host(hop.netns) or not isinstance(hop, NatHop | IpvsNatHop) or hop.nat.kind != "DNAT":
            continue
        if isinstance(hop, NatHop):
            is_now = not hop.from_conntrack and decision_of(hop) is not None
        else:
            # A client that keeps its real server may still have one that takes no other clients any more.
            is_now = hop.decision.chosen == "now" and not hop.decision.persistent
        found = nodes.service_at(hop.nat.before.dst, hop.nat.before.dport, packet.protocol.lower())
        if not is_now or not found or not is_of(hop.owner, found[0]):
            return None
        return EndpointChoice(found[0], hop, hop.nat.after.dst, hop.nat.after.dport)
    return None


def is_translated(packet: Packet) -> bool:
    """Whether the header of a packet was rewritten on this node."""
    return any(isinstance(hop, RewriteHop) for hop in packet.hops)


def has_run_nat(packet: Packet) -> bool:
    """Whether NAT rules of the node ran for the packet before it was routed. They run for the first packet of a connection."""
    return any(
        hop.hook in (Hook.PREROUTING, Hook.OUTPUT) and not hop.clone and is_host(hop.netns) and _is_nat(hop)
        for hop in packet.hops
        if isinstance(hop, TableHop | ChainHop)
    )


def _is_nat(hop: TableHop | ChainHop) -> bool:
    if isinstance(hop, TableHop):
        return hop.table == "nat"
    return hop.table.endswith(" nat") or hop.chain.startswith("nat-")


def is_thrown_away(packet: Packet) -> bool:
    """Whether the node threw the packet away. One that came to a pod or to a socket has passed the node's rules."""
    hops = [hop for hop in packet.hops if not hop.clone]
    if packet.outcome not in BAD or not hops or not is_host(hops[-1].netns):
        return False
    if packet.outcome is Outcome.REFUSED and is_translated(packet):
        return False  # a pod with the network of the node, where nothing listens
    return not any(isinstance(hop, SocketHop | HandshakeHop) for hop in hops)


def lacks_local_endpoint(packet: Packet, service: ServicePort) -> bool | None:
    """Whether the node threw a packet away for lack of a local endpoint; None = the rule that decided is not known."""
    for hop in packet.hops:
        if hop.clone or not is_host(hop.netns) or not isinstance(hop, DecidingHop):
            continue
        if isinstance(hop, IpvsRefusalHop):
            # In ipvs mode the virtual server of a NodePort has no real server then.
            return hop.verdict is Verdict.REJECT and is_of(hop.owner, service)
        if missing_endpoints.fate_in(hop.owner) == missing_endpoints.NONE_HERE or _has_comment(hop, service):
            return is_of(hop.owner, service) or hop.owner is None or hop.owner.kind != "Service"
        if hop.verdict in REFUSALS and decision_of(hop) is not None:
            return False
    return None


def _has_comment(hop: DecidingHop, service: ServicePort) -> bool:
    trace = trace_of(hop)
    comment = f"{service.label} has {missing_endpoints.NONE_HERE}"
    return any(hit.rule is not None and hit.rule.comment == comment for hit in (trace.hits if trace else ()))


def places(service: ServicePort, node: str, family: str, context: ClusterContext) -> EndpointPlaces | None:
    """Where the endpoints of a Service port are; None = the API has none, or the node of one is not known."""
    history = context.endpoints.history(service.namespace, service.name)
    if history:
        ends = history.of(service, family)
    else:
        ends = tuple(end for end in context.nodes.endpoints(service) if is_of_family(end.address, family))
    if not ends or not all(end.node for end in ends):
        return None
    here = tuple(end for end in ends if end.node == node)
    elsewhere = tuple(end for end in ends if end.node != node and end.ready)
    return EndpointPlaces(here, elsewhere, history.asked if history else 0)


def is_for_other_nodes(packet: Packet, service: ServicePort, node: str, context: ClusterContext) -> bool:
    """Whether only other nodes have endpoints of a Service with policy Local, and nothing else explains why the node threw a
    packet to it away."""
    if not service.local or lacks_local_endpoint(packet, service) is False:
        return False
    found = places(service, node, packet.family, context)
    return found is not None and not found.here and bool(found.elsewhere)


def slices_command(service: ServicePort) -> str:
    """A command that prints the EndpointSlices of a Service; "" = its names are none that a shell takes as they are."""
    if not _NAME.fullmatch(service.namespace) or not _NAME.fullmatch(service.name):
        return ""
    return f"`kubectl get endpointslices -n {service.namespace} -l kubernetes.io/service-name={service.name} -o yaml`"
