# SPDX-License-Identifier: Apache-2.0
"""Kubernetes objects in a capture: only the fields that tracer/kube/objects.py reads.

A pod's environment, annotations and the like are confidential, and most of an object's length.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tracer.kube import objects
from tracer.kube.objects import Object

Shape = dict[str, Any] | None
"""Keys that are kept; None = the whole value. A list has the shape of its elements."""

META: Shape = {
    "namespace": None, "name": None, "creationTimestamp": None, "managedFields": {"time": None},
    "labels": {label: None for label in ("kubernetes.io/service-name", *objects.NOT_FOR_KUBE_PROXY)},
}  # fmt: skip
_REF: Shape = {"kind": None, "namespace": None, "name": None}
_CONTROLLER: Shape = {"kind": None, "name": None, "controller": None}
_CONTAINERS: Shape = {"ports": None}
_ADDRESSES: Shape = {"ip": None, "targetRef": _REF, "nodeName": None}

SHAPES: dict[str, dict[str, Shape]] = {
    "Service": {
        "spec": {
            k: None
            for k in ("type", "clusterIP", "clusterIPs", "ports", "healthCheckNodePort", "externalIPs", "externalTrafficPolicy")
        },
        "status": {"loadBalancer": None},
    },
    "EndpointSlice": {
        "endpoints": {
            "addresses": None,
            "conditions": None,
            "nodeName": None,
            "topology": {"kubernetes.io/hostname": None},
            "targetRef": _REF,
        },
        "ports": None,
    },
    "Endpoints": {"subsets": {"addresses": _ADDRESSES, "notReadyAddresses": _ADDRESSES, "ports": None}},
    "Pod": {
        "metadata": {"namespace": None, "name": None, "labels": None, "ownerReferences": _CONTROLLER},
        "spec": {"nodeName": None, "hostNetwork": None, "initContainers": _CONTAINERS, "containers": _CONTAINERS},
        "status": {"phase": None, "podIP": None, "podIPs": None},
    },
    "NetworkPolicy": {"spec": {"podSelector": None, "policyTypes": None, "ingress": None, "egress": None}},
    "Namespace": {"metadata": {"name": None, "labels": None}},
    "Node": {"spec": {"podCIDR": None, "podCIDRs": None}, "status": {"addresses": None}},
}


def reduce_object(kind: str, body: Object) -> Object:
    """The object with only the fields that are read from this kind."""
    kept: Object = _cut(body, {"metadata": META, **SHAPES.get(kind, {})})
    return {"kind": kind, **kept}


def reduce_objects(kind: str, bodies: Iterable[Object]) -> list[Object]:
    """Reduces several objects. With kind "" each object names its own kind, and lists are flattened."""
    if kind:
        return [reduce_object(kind, body) for body in bodies]
    return [reduce_object(str(b["kind"]), b) for b in objects.flatten(bodies) if b.get("kind") in objects.KINDS]


def _cut(value: Any, shape: Shape) -> Any:
    if shape is None:
        return value
    if isinstance(value, list):
        return [_cut(v, shape) for v in value]
    if not isinstance(value, dict):
        return value
    return {key: _cut(value[key], inner) for key, inner in shape.items() if key in value}
