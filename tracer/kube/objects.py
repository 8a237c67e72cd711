# SPDX-License-Identifier: Apache-2.0
"""Converts the API's JSON to the classes of tracer/model/kube.py. Only the data for finding owners is kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from datetime import datetime
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from tracer.errors import NoObjects
from tracer.kube import policy_objects
from tracer.model.kube import Endpoint, HostPort, KubeNode, NamedPort, Pod, ServicePort

Object = dict[str, Any]

MOST_BYTES = 512 << 20
"""Maximum size of a file of objects, bytes."""
KINDS = ("Service", "EndpointSlice", "Endpoints", "Pod", "Node", "NetworkPolicy", "Namespace")
"""The kinds that are read from a list; others are ignored."""


OTHER_POLICIES = (
    "CiliumNetworkPolicy",
    "CiliumClusterwideNetworkPolicy",
    "GlobalNetworkPolicy",
    "ClusterNetworkPolicy",
    "AdminNetworkPolicy",
    "BaselineAdminNetworkPolicy",
)
"""Kinds of policies that are not evaluated."""
POLICY_GROUPS = ("networking.k8s.io", "extensions", "")
"""API groups of the NetworkPolicy that is evaluated; "" = not given. Calico and Antrea have kinds of the same name."""
_SAME_NAME = "NetworkPolicy of another API"


def is_other_policy(body: Object) -> bool:
    """Whether an object is a policy that is not evaluated."""
    kind, group = body.get("kind"), str(body.get("apiVersion") or "")
    own_group = group.partition("/")[0] if "/" in group else ""
    return kind in OTHER_POLICIES or (kind == "NetworkPolicy" and own_group not in POLICY_GROUPS)


def note_of_other_policies(bodies: Iterable[Object]) -> str:
    """A sentence with the number of policies that are not evaluated; "" = there are none."""
    kinds = Counter(
        _SAME_NAME if body["kind"] == "NetworkPolicy" else str(body["kind"]) for body in bodies if is_other_policy(body)
    )
    if not kinds:
        return ""
    listed = ", ".join(f"{kinds[kind]} {kind}" for kind in (*OTHER_POLICIES, _SAME_NAME) if kinds[kind])
    allow = "it allows" if kinds.total() == 1 else "they allow"
    return f"Not evaluated: {listed}. Which packets {allow} is not known."


def key(body: Object) -> tuple[str, str]:
    """Returns (namespace, name) of an object; namespace "" for a node."""
    meta = body.get("metadata") or {}
    return str(meta.get("namespace", "")), str(meta.get("name", ""))


def has_name(body: Any) -> bool:
    """Whether `key` can read an object."""
    return isinstance(body, dict) and isinstance(body.get("metadata") or {}, dict)


def service_ports(body: Object) -> tuple[ServicePort, ...]:
    """Returns the ports of a Service; () for an ExternalName, which kube-proxy ignores."""
    spec, (namespace, name) = body.get("spec") or {}, key(body)
    if spec.get("type") == "ExternalName":
        return ()
    addresses = spec.get("clusterIPs") or [spec.get("clusterIP", "")]
    ingress = ((body.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []
    return tuple(
        ServicePort(
            namespace,
            name,
            port.get("name", ""),
            port.get("protocol", "TCP").lower(),
            int(port["port"]),
            int(port.get("nodePort", 0)),
            int(spec.get("healthCheckNodePort", 0)),
            tuple(a for a in addresses if a and a != "None"),
            tuple(spec.get("externalIPs") or ()),
            tuple(i["ip"] for i in ingress if i.get("ip")),
            spec.get("externalTrafficPolicy") == "Local",
        )
        for port in spec.get("ports") or ()
    )


NOT_FOR_KUBE_PROXY = ("service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless")
"""Labels of a Service that kube-proxy ignores. Source: kubernetes cmd/kube-proxy/app/server.go."""


def times(body: Object) -> tuple[int, int]:
    """When an object was made, and when it was changed last, s since the epoch; 0 = not known.

    The API notes the time of a change for each program that has set fields (managedFields). Without them (kubectl leaves them
    out unless --show-managed-fields is given) the last change is not known.
    """
    meta = body.get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    created, managed = _seconds(meta.get("creationTimestamp")), meta.get("managedFields")
    changes = [_seconds(each.get("time")) for each in managed if isinstance(each, dict)] if isinstance(managed, list) else []
    return created, max(created, *changes) if any(changes) else 0


def _seconds(text: Any) -> int:
    """Parses a time of the API, 2026-11-28T15:04:05Z; 0 = none, or an invalid one."""
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp())) if isinstance(text, str) and text.endswith("Z") else 0
    except (ValueError, OverflowError):
        return 0


def is_for_kube_proxy(body: Object) -> bool:
    """Whether kube-proxy has to write rules for a Service."""
    meta = body.get("metadata")
    labels = meta.get("labels") if isinstance(meta, dict) else None
    return not (isinstance(labels, dict) and any(label in labels for label in NOT_FOR_KUBE_PROXY))


PortName = tuple[str, str]
"""(name, protocol) of a service port."""


def slice_endpoints(body: Object) -> tuple[tuple[str, str], list[tuple[PortName, Endpoint]]]:
    """Returns the Service of an EndpointSlice, and its endpoints with their ports."""
    namespace, _ = key(body)
    service = ((body.get("metadata") or {}).get("labels") or {}).get("kubernetes.io/service-name", "")
    found = []
    for end in body.get("endpoints") or ():
        said = end.get("conditions") or {}
        ready, terminating = said.get("ready") is not False, said.get("terminating") is True
        serving = ready if said.get("serving") is None else said["serving"] is not False
        state = ready, terminating, serving
        node = end.get("nodeName") or (end.get("topology") or {}).get("kubernetes.io/hostname", "")
        for port in body.get("ports") or ():
            if port.get("port"):
                name = (port.get("name") or "", (port.get("protocol") or "TCP").lower())
                pod = _pod_of(end.get("targetRef"))
                found += [(name, Endpoint(a, int(port["port"]), pod, node, *state)) for a in end.get("addresses") or ()]
    return (namespace, service), found


def endpoints_endpoints(body: Object) -> tuple[tuple[str, str], list[tuple[PortName, Endpoint]]]:
    """Returns the same for an Endpoints object, which has its Service's name."""
    found = []
    for subset in body.get("subsets") or ():
        for port in subset.get("ports") or ():
            name = (port.get("name", ""), port.get("protocol", "TCP").lower())
            for addresses, ready in ((subset.get("addresses"), True), (subset.get("notReadyAddresses"), False)):
                found += [
                    (name, Endpoint(a["ip"], int(port["port"]), _pod_of(a.get("targetRef")), a.get("nodeName") or "", ready))
                    for a in addresses or ()
                ]
    return key(body), found


def _pod_of(reference: Object | None) -> tuple[str, str]:
    if not reference or reference.get("kind") != "Pod":
        return "", ""
    return reference.get("namespace", ""), reference.get("name", "")


def pod(body: Object) -> Pod | None:
    """Returns a pod; None for an ended one, because another pod may have its address now."""
    spec, state = body.get("spec") or {}, body.get("status") or {}
    if state.get("phase") in ("Succeeded", "Failed"):
        return None
    addresses = tuple(a["ip"] for a in state.get("podIPs") or () if a.get("ip")) or tuple(filter(None, [state.get("podIP")]))
    ports = [p for c in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())] for p in c.get("ports") or ()]
    host_ports = tuple(
        HostPort(int(p["hostPort"]), int(p["containerPort"]), (p.get("protocol") or "TCP").lower(), _host(p.get("hostIP")))
        for p in ports
        if p.get("hostPort")
    )
    numbers = tuple(dict.fromkeys(int(p["containerPort"]) for p in ports if p.get("containerPort")))
    named = tuple(
        NamedPort(str(p["name"]), int(p["containerPort"]), (p.get("protocol") or "TCP").lower())
        for p in ports
        if p.get("name") and p.get("containerPort")
    )
    meta = body.get("metadata") or {}
    labels = tuple(sorted((str(k), str(v)) for k, v in (meta.get("labels") or {}).items()))
    owners = [owner for owner in meta.get("ownerReferences") or () if owner.get("controller")]
    controllers = tuple((str(owner.get("kind")), str(owner.get("name"))) for owner in owners)
    node_name, has_host_network = spec.get("nodeName") or "", bool(spec.get("hostNetwork"))
    return Pod(*key(body), node_name, addresses, has_host_network, host_ports, numbers, labels, controllers, named)


def _host(address: str | None) -> str:
    return "" if address in (None, "0.0.0.0", "::") else str(address)


def node(body: Object) -> KubeNode:
    """Returns a node with its IP addresses, without its host name. Raises ValueError for an invalid podCIDR."""
    spec, state = body.get("spec") or {}, body.get("status") or {}
    addresses = tuple(a["address"] for a in state.get("addresses") or () if a["type"].endswith("IP"))
    cidrs = spec.get("podCIDRs") or [spec.get("podCIDR", "")]
    for cidr in filter(None, cidrs):
        ip_network(cidr, strict=False)
    return KubeNode(key(body)[1], addresses, tuple(c for c in cidrs if c))


def is_readable(kind: str, body: Any) -> bool:
    """Whether an object has the types of the API. kind: "" = the kind in the object.

    Objects come from an untrusted API or file. An invalid one (`null`, or a list in place of a string) is ignored; the others
    are used.
    """
    try:
        kind = kind or str(body["kind"])
        made: Any = _READ[kind](body)
        if kind in ("EndpointSlice", "Endpoints"):
            service, ends = made
            made = service, tuple(ends)
        return has_name(body) and _is_typed(made)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return False


_READ: dict[str, Callable[[Object], Any]] = {
    "Service": service_ports,
    "EndpointSlice": slice_endpoints,
    "Endpoints": endpoints_endpoints,
    "Pod": pod,
    "Node": node,
    "NetworkPolicy": policy_objects.network_policy,
    "Namespace": policy_objects.namespace,
}


def _is_typed(value: Any) -> bool:
    """Whether a value consists of strings, and of data classes with the declared types in their fields."""
    if isinstance(value, tuple):
        return all(map(_is_typed, value))
    if is_dataclass(value):
        return all(_fits(getattr(value, f.name), str(f.type)) for f in fields(value))
    return value is None or isinstance(value, str)


def _fits(value: Any, declared: str) -> bool:
    if declared in _PLAIN:
        return type(value) is _PLAIN[declared]
    if declared == "tuple[int, ...]":
        return isinstance(value, tuple) and all(type(v) is int for v in value)
    if is_dataclass(value):
        return not declared.startswith("tuple") and _is_typed(value)
    return (value is None and declared.endswith("| None")) or (isinstance(value, tuple) and all(map(_is_typed, value)))


_PLAIN: dict[str, type] = {"str": str, "int": int, "bool": bool}


def read(path: str) -> list[Object]:
    """Reads objects from a file or pipe with the output of `kubectl get ... -o json`, at most MOST_BYTES. Raises NoObjects."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise NoObjects(f"--objects {path} has more than {MOST_BYTES >> 20} MB.")
        body = json.loads(text)
    except OSError as e:
        raise NoObjects(f"--objects {path} cannot be read: {e.strerror}.") from e
    except (ValueError, RecursionError) as e:
        raise NoObjects(f"--objects {path} is not valid JSON: {e}. Use the output of `kubectl get -A -o json`.") from e
    found = list(flatten([body]))
    if not any(o.get("kind") in KINDS for o in found):
        raise NoObjects(f"--objects {path} has no Service, EndpointSlice, Pod or Node in it.")
    return found


def flatten(bodies: Iterable[Any]) -> Iterator[Object]:
    """Yields the objects, also those inside lists."""
    for body in bodies:
        if isinstance(body, dict):
            if "items" in body:
                kind, inside = str(body.get("kind", "")).removesuffix("List"), body["items"]
                inside = inside if isinstance(inside, list) else []
                # Objects in a list of one kind may have neither kind nor version of their own.
                given = {"kind": kind, **({"apiVersion": body["apiVersion"]} if kind and "apiVersion" in body else {})}
                yield from flatten({**given, **i} if isinstance(i, dict) else i for i in inside)
            else:
                yield body
