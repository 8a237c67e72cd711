# SPDX-License-Identifier: Apache-2.0
"""A NodePort answers on one node, and another node throws SYNs to it away: whether a client gets an answer depends on the node
that it asks.
"""

from __future__ import annotations

from tracer.cluster_findings import service_views
from tracer.cluster_findings.cluster_context import ClusterContext, NodePortUse
from tracer.findings.proofs import packet_proof
from tracer.joining import wire_headers
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.joined_packet import NodeView
from tracer.model.kube import ServicePort

FEWEST_FAILED = 2
"""Number of SYNs that a node must have thrown away: a single one may have come while rules were replaced."""


def find(view: NodeView, context: ClusterContext) -> Finding | None:
    packet, node = view.packet, view.node
    if packet.protocol != "TCP" or not packet.complete:
        return None
    addresses = context.nodes.addresses(node)
    if packet.tcp_flags == "SYN ACK":
        left = wire_headers.headers_of(packet).departure
        if left and left.endpoints.src in addresses and context.nodes.node_port(left.endpoints.sport):
            context.note_node_port(node, left.endpoints.sport, is_answered=True)
        return None
    if packet.tcp_flags != "SYN" or packet.endpoints.dst not in addresses:
        return None
    port = packet.endpoints.dport
    service = context.nodes.node_port(port)
    if not service or not service_views.is_thrown_away(packet):
        return None
    use = context.note_node_port(node, port, is_answered=False)
    if service_views.is_for_other_nodes(packet, service, node, context):
        return None  # local_policy_no_endpoint
    others = [other for other in context.nodes.names if other != node and context.node_port_use(other, port).answered]
    if use.answered or use.failed < FEWEST_FAILED or not others:
        return None
    return _finding(view, service, sorted(others), use, context)


def _finding(view: NodeView, service: ServicePort, others: list[str], use: NodePortUse, context: ClusterContext) -> Finding:
    node, port, packet = view.node, service.node_port, view.packet
    answered = context.node_port_use(others[0], port).answered
    policy = "Local" if service.local else "Cluster"
    proofs = (
        packet_proof(packet),
        FindingEvidence("counter", f"node {node} threw away {use.failed} SYNs to port {port}, and answered none", "observed"),
        FindingEvidence("counter", f"node {others[0]} answered {answered} SYNs to port {port}", "observed"),
        FindingEvidence("object", f"Service {service.label} has externalTrafficPolicy {policy}", "Kubernetes API"),
    )
    if service.local:
        why = "with externalTrafficPolicy Local only nodes with a ready pod of the Service answer."
        cure = (
            f"Let clients and load balancers ask only nodes with a ready pod {_health(service)}, run a pod on each node,"
            " or use policy Cluster."
        )
    else:
        why = f"with externalTrafficPolicy Cluster every node has to answer, so something on node {node} is in the way."
        cure = f"See what throws the packets away on node {node}: its firewall, a NetworkPolicy, or rules that kube-proxy left."
    return Finding(
        name="",
        key=(node, port),
        cause=f"NodePort {port} of Service {service.label} answers on node {others[0]}, and not on node {node}: {why}",
        proofs=proofs,
        check=_check(service),
        cure=cure,
    )


def _health(service: ServicePort) -> str:
    return f" (health check port {service.health_port})" if service.health_port else ""


def _check(service: ServicePort) -> str:
    command = service_views.slices_command(service)
    return f"{command or 'The EndpointSlices of the Service'} {'has' if command else 'have'} the nodes of its ready pods."
