# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of policies: objects of the API, and the cluster that has them."""

from __future__ import annotations

from typing import Any

from tracer.kube.catalog import ClusterView
from tracer.kube.store import ObjectStore

Object = dict[str, Any]


def pod(name: str, address: str, node: str = "node-1", host: bool = False, ports: Any = (), **labels: str) -> Object:
    """A pod. name: NAMESPACE/NAME. ports: (name, number) or (name, number, protocol) of its container's ports."""
    namespace, _, own = name.partition("/")
    listed = [{"name": p[0], "containerPort": p[1], "protocol": p[2] if len(p) > 2 else "TCP"} for p in ports]
    return {
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": own, "labels": labels},
        "spec": {"nodeName": node, "hostNetwork": host, "containers": [{"name": "c", "ports": listed}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    }


def policy(name: str, pods: Object | None = None, **spec: Any) -> Object:
    """A NetworkPolicy. name: NAMESPACE/NAME. pods: labels of the selected pods; spec: ingress, egress, policyTypes."""
    namespace, _, own = name.partition("/")
    return {
        "kind": "NetworkPolicy",
        "metadata": {"namespace": namespace, "name": own},
        "spec": {"podSelector": {"matchLabels": pods} if pods else {}, **spec},
    }


def namespace(name: str, **labels: str) -> Object:
    return {"kind": "Namespace", "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name, **labels}}}


def node(name: str, address: str) -> Object:
    return {"kind": "Node", "metadata": {"name": name}, "status": {"addresses": [{"type": "InternalIP", "address": address}]}}


def cluster(*objects: Object) -> ClusterView:
    """The cluster with these objects, seen from node-1."""
    store = ObjectStore("node-1")
    store.load(objects)
    return ClusterView(store)
