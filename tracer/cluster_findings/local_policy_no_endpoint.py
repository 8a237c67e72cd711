# SPDX-License-Identifier: Apache-2.0
"""A client or a load balancer asks a node without an endpoint of a Service with externalTrafficPolicy Local: the node drops the
packet, as the policy says, and other nodes have the endpoints.

A node that has endpoints of its own and drops all the same has another fault, which its own findings name.
"""

from __future__ import annotations

from tracer.cluster_findings import service_views
from tracer.cluster_findings.cluster_context import ClusterContext, ServiceKey, Suspicion
from tracer.cluster_findings.service_views import CLUSTER_IP, EndpointPlaces
from tracer.findings.proofs import packet_proof
from tracer.joining import wire_headers
from tracer.joining.pair_clocks import UNKNOWN_ERROR_NS
from tracer.model.finding import Finding, FindingEvidence, likely_cause
from tracer.model.joined_packet import JoinedPacket
from tracer.model.kube import Endpoint, ServicePort
from tracer.model.packet import Packet
from tracer.packets.outcome import BAD
from tracer.util.endpoint_format import format_endpoint

FEWEST_DROPPED = 2
"""Number of packets that a node must have thrown away: a single one may have come while a pod moved."""
MOST_NAMED = 5
"""Most nodes and endpoints that are named."""


def suspect(joined: JoinedPacket, at: int, context: ClusterContext) -> Suspicion | None:
    """Counts packets that a node threw away for lack of a local endpoint. Returns a suspicion when there are enough."""
    view = joined.views[at]
    packet, node = view.packet, view.node
    service = _service(packet, context) if packet.complete and packet.outcome in BAD else None
    if not service or not service_views.is_for_other_nodes(packet, service, node, context):
        return None
    context.endpoints.ask(service.namespace, service.name)
    if context.note_turned_away(node, service_views.key_of(service, packet.family)) < FEWEST_DROPPED:
        return None
    error = view.error if view.offset is not None else UNKNOWN_ERROR_NS
    return Suspicion(view, view.time, error)


def find(suspicion: Suspicion, context: ClusterContext) -> Finding | None:
    packet, node = suspicion.view.packet, suspicion.view.node
    service = _service(packet, context)
    if not service or not service_views.is_for_other_nodes(packet, service, node, context):
        return None  # the endpoints have been read since then
    found = service_views.places(service, node, packet.family, context)
    if not found:
        return None
    doubt = ""
    if service_views.lacks_local_endpoint(packet, service) is None:
        doubt = "The rule that threw the packet away is not known, so something else may have done it."
    elif found.asked < suspicion.time + suspicion.error:
        doubt = "The endpoints were not read since then, so they may have moved."
    return _finding(suspicion, service, found, doubt, context)


def _service(packet: Packet, context: ClusterContext) -> ServicePort | None:
    """The Service port with policy Local that a packet from elsewhere asked, and that the node threw away."""
    ends = packet.endpoints
    found = context.nodes.service_at(ends.dst, ends.dport, packet.protocol.lower())
    if not found or found[1] == CLUSTER_IP or not found[0].local or not service_views.is_thrown_away(packet):
        return None
    # What the node itself sends reaches all endpoints.
    comes = wire_headers.headers_of(packet).arrival is not None
    return found[0] if comes and service_views.is_new(packet) else None


def _finding(suspicion: Suspicion, service: ServicePort, found: EndpointPlaces, doubt: str, context: ClusterContext) -> Finding:
    packet, node = suspicion.view.packet, suspicion.view.node
    key = service_views.key_of(service, packet.family)
    to = format_endpoint(packet.endpoints.dst, packet.endpoints.dport)
    nodes = sorted({end.node for end in found.elsewhere})
    text = (
        f"Clients of Service {service.label} ask node {node} ({to}), which has no endpoint of it, and with"
        f" externalTrafficPolicy Local the node drops their packets: the ready endpoints are on {_named(nodes)}."
    )
    return Finding(
        name="",
        key=(node, *key, packet.endpoints.dport),
        cause=likely_cause(text, doubt),
        proofs=_proofs(packet, node, key, service, found, context),
        check=_check(node, service, found),
        cure=_cure(service),
        certain=not doubt,
    )


def _proofs(
    packet: Packet, node: str, key: ServiceKey, service: ServicePort, found: EndpointPlaces, context: ClusterContext
) -> tuple[FindingEvidence, ...]:
    count = context.turned_away[node, key]
    proofs = [
        packet_proof(packet),
        FindingEvidence("counter", f"node {node} threw away {count} first packets of connections to it", "observed"),
        FindingEvidence(
            "object",
            f"Service {service.label} has externalTrafficPolicy Local, no endpoint on node {node}, and"
            f" {_ends(found.elsewhere)}" + ("" if found.asked else ", when the run began"),
            "Kubernetes API",
        ),
    ]
    for other in context.nodes.names:
        answered = context.node_port_use(other, service.node_port).answered if other != node else 0
        if answered:
            proofs.append(FindingEvidence("counter", f"node {other} answered {answered} SYNs to its NodePort", "observed"))
            break
    return tuple(proofs)


def _named(nodes: list[str]) -> str:
    more = f" and {len(nodes) - MOST_NAMED} more" if len(nodes) > MOST_NAMED else ""
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(nodes[:MOST_NAMED])}{more}"


def _ends(ends: tuple[Endpoint, ...]) -> str:
    named = [f"{format_endpoint(end.address, end.port)} on node {end.node}" for end in ends[:MOST_NAMED]]
    more = f" and {len(ends) - MOST_NAMED} more" if len(ends) > MOST_NAMED else ""
    return ", ".join(named) + more


def _check(node: str, service: ServicePort, found: EndpointPlaces) -> str:
    command = service_views.slices_command(service)
    says = f"{command} has the nodes of the endpoints. " if command else ""
    if not service.health_port:
        return f"{says}The load balancer has to know them: the Service has no healthCheckNodePort, by which it could ask."
    return (
        f"{says}`curl -s http://localhost:{service.health_port}/` on node {node} and on node {found.elsewhere[0].node} is what"
        " the load balancer should ask: status 503 and localEndpoints 0 on a node without endpoints. If it asks this port, its"
        " list of healthy targets must not have the first node."
    )


def _cure(service: ServicePort) -> str:
    health = f" (its health check has to be port {service.health_port}, path /healthz)" if service.health_port else ""
    return (
        f"Let clients and load balancers choose only nodes with an endpoint{health}, run a pod on each node, as a DaemonSet"
        " does, or use policy Cluster. A load balancer that checks the NodePort itself sends such packets, too: then this is"
        " no fault."
    )
