# SPDX-License-Identifier: Apache-2.0
"""Objects of the Kubernetes API as `kubectl get -A -o json` prints them, with the fields that the tracer reads."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]


def node(name: str, address: str, pod_cidr: str) -> Object:
    status = {"addresses": [{"type": "InternalIP", "address": address}]}
    return {"kind": "Node", "metadata": {"name": name}, "spec": {"podCIDRs": [pod_cidr]}, "status": status}


def service(name: str, address: str, port: int, node_port: int = 0, port_name: str = "", **spec: object) -> Object:
    """name: ns/name. spec: further fields of it, such as externalTrafficPolicy."""
    one: Object = {"port": port, "protocol": "TCP"}
    if node_port:
        one["nodePort"] = node_port
    if port_name:
        one["name"] = port_name
    return {"kind": "Service", "metadata": _meta(name), "spec": {"clusterIPs": [address], "ports": [one], **spec}}


def endpoints(name: str, ends: list[tuple[str, str, str]], port: int, port_name: str = "") -> Object:
    """The EndpointSlice of Service ns/name. ends: (pod's name, address, nodeName)."""
    namespace, _, plain = name.partition("/")
    found = [
        {
            "addresses": [address],
            "conditions": {"ready": True},
            "nodeName": on,
            "targetRef": {"kind": "Pod", "namespace": namespace, "name": pod},
        }
        for pod, address, on in ends
    ]
    meta = _meta(f"{name}-x7k2p") | {"labels": {"kubernetes.io/service-name": plain}}
    return {
        "kind": "EndpointSlice",
        "metadata": meta,
        "endpoints": found,
        "ports": [{"name": port_name, "port": port, "protocol": "TCP"}],
    }


def pod(name: str, address: str, on: str, port: int, host_port: int = 0) -> Object:
    """name: ns/name. on: the node's name."""
    one = {"containerPort": port, "protocol": "TCP"} | ({"hostPort": host_port} if host_port else {})
    status = {"phase": "Running", "podIPs": [{"ip": address}]}
    return {
        "kind": "Pod",
        "metadata": _meta(name),
        "spec": {"nodeName": on, "containers": [{"ports": [one]}]},
        "status": status,
    }


def changed(body: Object, at: int) -> Object:
    """The object, made and changed last at this time, s since the epoch, as the API notes it (managedFields)."""
    text = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    managed = [{"manager": "kube-controller-manager", "operation": "Update", "time": text}]
    return {**body, "metadata": {**body["metadata"], "creationTimestamp": text, "managedFields": managed}}


def _meta(name: str) -> Object:
    namespace, _, plain = name.partition("/")
    return {"namespace": namespace, "name": plain}
