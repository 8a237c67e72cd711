# SPDX-License-Identifier: Apache-2.0
"""Objects as an API server returns them: the collections, the fields that a server adds, and the match of selectors."""

from __future__ import annotations

import copy
from typing import Any

Object = dict[str, Any]

CORE, V1BETA1 = "/api/v1", "/apis/discovery.k8s.io/v1beta1"
PATHS = {
    f"{CORE}/services": "Service", f"{CORE}/pods": "Pod", f"{CORE}/nodes": "Node", f"{CORE}/endpoints": "Endpoints",
    f"{CORE}/events": "Event",
    "/apis/discovery.k8s.io/v1/endpointslices": "EndpointSlice", f"{V1BETA1}/endpointslices": "EndpointSlice",
    "/apis/networking.k8s.io/v1/servicecidrs": "ServiceCIDR", "/apis/apps/v1/daemonsets": "DaemonSet",
    "/apis/networking.k8s.io/v1/networkpolicies": "NetworkPolicy",
}  # fmt: skip
"""Path of a collection -> kind of its objects."""


def key(body: Object) -> tuple[str, str, str]:
    """Kind, namespace, name."""
    return body["kind"], body["metadata"].get("namespace", ""), body["metadata"]["name"]


def version_of(path: str) -> str:
    """The apiVersion of the objects at this path."""
    return "/".join(path.split("/")[2:-1])


def served(body: Object, path: str) -> Object:
    """The object as a Kubernetes server returns it at this path: with its apiVersion and the defaults that clients rely on."""
    found = copy.deepcopy(body) | {"apiVersion": version_of(path)}
    if body["kind"] == "Service":
        _service(found["spec"])
    if body["kind"] == "EndpointSlice":
        found.setdefault("addressType", "IPv4")
        for end in found.get("endpoints") or () if path.startswith(V1BETA1) else ():
            end.setdefault("topology", {"kubernetes.io/hostname": end["nodeName"]} if end.get("nodeName") else {})
    return found


def _service(spec: Object) -> None:
    addresses = spec.get("clusterIPs") or [spec.get("clusterIP", "None")]
    ports = spec.get("ports") or []
    spec.setdefault("clusterIP", addresses[0])
    spec.setdefault("type", "NodePort" if any(p.get("nodePort") for p in ports) else "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    if addresses[0] not in ("None", ""):
        spec.setdefault("ipFamilies", ["IPv6" if ":" in a else "IPv4" for a in addresses])
    if spec["sessionAffinity"] == "ClientIP":
        spec.setdefault("sessionAffinityConfig", {"clientIP": {"timeoutSeconds": 10800}})
    for port in ports:
        port.setdefault("targetPort", port["port"])


def is_selected(body: Object, query: dict[str, str]) -> bool:
    """Whether the request's fieldSelector and labelSelector match the object."""
    labels = body["metadata"].get("labels") or {}
    of_labels = [term for term in query.get("labelSelector", "").split(",") if term]
    of_fields = [term for term in query.get("fieldSelector", "").split(",") if term]
    return all(_has_field(body, term) for term in of_fields) and all(_has_label(labels, term) for term in of_labels)


def _has_field(body: Object, selector: str) -> bool:
    """selector: `path=value` or `path!=value`."""
    path, _, value = selector.partition("=")
    found: Any = body
    for name in path.removesuffix("!").split("."):
        found = (found or {}).get(name)
    return bool(found == value) != path.endswith("!")


def _has_label(labels: dict[str, str], term: str) -> bool:
    """term: `!name`, `name`, `name=value` or `name!=value`."""
    if term.startswith("!"):
        return term[1:] not in labels
    name, equals, value = term.partition("=")
    if not equals:
        return name in labels
    return (labels.get(name.removesuffix("!")) == value) != name.endswith("!")
