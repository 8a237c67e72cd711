# SPDX-License-Identifier: Apache-2.0
"""Finds the owner of an address (a Service, a pod, a node, external), and of a rewrite without an observed rule."""

from __future__ import annotations

from tracer.kube.catalog import ClusterView
from tracer.model.hop import Nat
from tracer.model.kube import UNKNOWN, Owner


def end_of(address: str, port: int, protocol: str, cluster: ClusterView) -> Owner:
    """Returns the owner of an address and port.

    Without the API, addresses outside of this node are unknown. A port that is both a Service's NodePort and a pod's hostPort
    belongs to the node, with both names.

    Args:
        protocol: "tcp", "udp" or "sctp"; any other protocol has no Service.
    """
    store = cluster.store
    # In ipvs mode the cluster IPs are also addresses of the node.
    local = cluster.is_local(address) and not store.by_service_ip.all(address) and address not in cluster.ipvs
    service, pod = cluster.service_at(address, port, protocol), _host_port(port, protocol, cluster) if local else None
    if service and pod:
        return both(service[1], service[0].label, pod, cluster, "API: address and port")
    if service:
        return service[0].owner(service[1], "API: address and port")
    if pod:
        return pod
    names = store.by_service_ip.all(address)
    if names and len(set(names)) == 1:
        return Owner("Service", *names[0], detail=f"which has no port {port}", evidence="API: address")
    at = cluster.pod_at(address)
    if at:
        return Owner("Pod", at[0], at[1], detail=f"on {at[2]}" if at[2] else "", evidence="address")
    node = store.by_node_ip.one(address)
    if node or local:
        return Owner("Node", name=node.name if node else store.node, evidence="address")
    if address in cluster.ipvs:
        return Owner("unknown", detail="a Service's, because it is an address of kube-ipvs0", evidence="netlink")
    return _elsewhere(address, cluster)


def both(way: str, service: str, pod: Owner, cluster: ClusterView, evidence: str) -> Owner:
    """Returns the node as the owner of a port that is both a Service's (way: "NodePort 30285") and a pod's hostPort."""
    return Owner(
        "Node", name=cluster.store.node, detail=f"{way} of {service} and {pod.detail} of {pod.label}", evidence=evidence
    )


def _host_port(port: int, protocol: str, cluster: ClusterView) -> Owner | None:
    """Returns the pod with this host port on this node."""
    sandboxes = cluster.sandboxes.host_port(port, protocol)
    if len(sandboxes) == 1:
        only = sandboxes[0]
        return Owner("Pod", only.namespace, only.name, detail=f"hostPort {port}", evidence="CNI result cache")
    pods = [p for p in cluster.store.by_host_port.all((port, protocol)) if p.node == cluster.store.node]
    return pods[0].owner(f"hostPort {port}", "API: hostPort") if len(pods) == 1 and not sandboxes else None


def _elsewhere(address: str, cluster: ClusterView) -> Owner:
    """Returns "external" if the cluster is known; "unknown" for an unused address of a pod network."""
    node = cluster.store.node_of_network(address)
    if node:
        return Owner("unknown", detail=f"in podCIDR of {node.name}", evidence="API: podCIDR")
    return Owner("external", evidence="no node, pod or Service has it") if len(cluster.store.nodes) else UNKNOWN


def owner_of_rewrite(nat: Nat, protocol: str, cluster: ClusterView) -> Owner | None:
    """Returns the owner of a DNAT from its addresses alone: a Service with an endpoint at the new address, or a hostPort.

    None for any other rewrite, and if both match.
    """
    if nat.kind != "DNAT":
        return None
    before, after = nat.before, nat.after
    found = []
    service = cluster.service_at(before.dst, before.dport, protocol)
    if service:
        port, way = service
        ends = cluster.store.endpoints.all((port.label, port.protocol))
        if any((e.address, e.port) == (after.dst, after.dport) for e in ends):
            found.append(port.owner(way, "addresses of the rewrite", target=cluster.leads_to(after.dst)))
    at = cluster.pod_at(after.dst)
    if at and cluster.is_local(before.dst):
        pod = _host_port(before.dport, protocol, cluster)
        if pod and (pod.namespace, pod.name) == at[:2]:
            found.append(pod)
    return found[0] if len(found) == 1 else None
