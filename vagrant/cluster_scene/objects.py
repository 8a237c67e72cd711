# SPDX-License-Identifier: Apache-2.0
"""The cluster as objects of the Kubernetes API, with the pods of the tracer's DaemonSet."""

from __future__ import annotations

from collections.abc import Iterator

from cluster_scene.plan import HTTP_PORT, NAMESPACE, UDP_PORT, ClusterPlan, NodePlan
from incidents import objects
from incidents.objects import Object

AGENTS = "kube-system"
"""Namespace of the DaemonSet."""
LABELS = {"app.kubernetes.io/name": "k8snet-trace"}


def agent_pod_name(node: NodePlan) -> str:
    """The name of the DaemonSet's pod on a node."""
    return f"k8snet-trace-{node.letter}"


def all_objects(plan: ClusterPlan) -> list[Object]:
    """Nodes, pods, Services, their slices, and the DaemonSet."""
    return list(_objects(plan))


def _objects(plan: ClusterPlan) -> Iterator[Object]:
    yield {"kind": "DaemonSet", "metadata": {"namespace": AGENTS, "name": "k8snet-trace", "labels": LABELS}, "spec": {}}
    for node in plan.nodes:
        yield objects.node(node.name, node.address, node.pod_cidr)
        for pod in node.pods:
            yield objects.pod(f"{NAMESPACE}/{pod.name}", pod.address, node.name, HTTP_PORT)
        yield _agent(node)
    carts = [(node.pod("cart").name, node.pod("cart").address, node.name) for node in plan.nodes]
    for service in plan.services(plan.nodes[-1]):
        policy = {"externalTrafficPolicy": "Local"} if service.local else {}
        found = objects.service(service.name, service.address, service.port, service.node_port, **policy)
        ends = carts[-1:] if service.local else carts
        beside = objects.endpoints(service.name, ends, UDP_PORT if service.protocol == "udp" else HTTP_PORT)
        for port in (*found["spec"]["ports"], *beside["ports"]):
            port["protocol"] = service.protocol.upper()
        yield found
        yield beside


def _agent(node: NodePlan) -> Object:
    return {
        "kind": "Pod",
        "metadata": {"namespace": AGENTS, "name": agent_pod_name(node), "labels": LABELS},
        "spec": {"nodeName": node.name, "hostNetwork": True, "containers": [{"name": "k8snet-trace", "image": "k8snet-trace"}]},
        "status": {"phase": "Running", "podIPs": [{"ip": node.address}]},
    }
