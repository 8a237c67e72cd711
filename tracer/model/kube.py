# SPDX-License-Identifier: Apache-2.0
"""Kubernetes objects as the tracer uses them: owner, service port, endpoint, pod, node."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tracer.model.policy import KIND_WORDS, POLICY_KINDS


@dataclass(frozen=True)
class ObjectReference:
    """The name of one Kubernetes object.

    Attributes:
        kind: "Service", "Pod" or "Node".
        namespace: Its namespace; "" for a Node.
        name: Its name.
    """

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True)
class Owner:
    """The owner of a rule, of a rewrite or of one endpoint of a packet.

    Attributes:
        kind: "Service", "Pod", "Node", "program" (a program's own rule, for no object), "administrator", "external" or
            "unknown"; of policies one of POLICY_KINDS (tracer/model/policy.py).
        namespace: Namespace of the object.
        name: Name of the object.
        port: Name of the port, "" = the port has no name.
        program: The program that wrote the rule; "" for an endpoint.
        detail: The part of the owner: "NodePort 30285", "hostPort 3306", "KUBE-FIREWALL".
        target: Where the rule leads: "pod default/web-a (node-1)".
        cause: A clause that says why the rule acted: what set the mark that it tests.
        evidence: How the owner is known: "comment", "chain name", "API: chain hash", "CNI result cache".
    """

    kind: str
    namespace: str = ""
    name: str = ""
    port: str = ""
    program: str = ""
    detail: str = ""
    target: str = ""
    cause: str = ""
    evidence: str = ""

    @property
    def known(self) -> bool:
        return self.kind != "unknown"

    @property
    def label(self) -> str:
        """The object as Kubernetes writes it: default/http-proxy:http, node-1; "" = no object."""
        where = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{where}:{self.port}" if self.port else where

    @property
    def reference(self) -> ObjectReference | None:
        """The Kubernetes object; None = a program, the administrator, or not known."""
        is_object = self.kind in ("Service", "Pod", "Node") and bool(self.name)
        return ObjectReference(self.kind, self.namespace, self.name) if is_object else None

    @property
    def text(self) -> str:
        """One phrase: "Service default/http-proxy:http, NodePort 30285 -> pod default/web-a (node-1)"."""
        return _PHRASES.get(self.kind, _program)(self) + (f" -> {self.target}" if self.target else "")


UNKNOWN = Owner("unknown")


def _join(subject: str, owner: Owner) -> str:
    """Appends detail and cause to the subject: a chain's name directly, anything else as a clause."""
    if owner.detail:
        subject += f" {owner.detail}" if owner.detail.isupper() and " " not in owner.detail else f", {owner.detail}"
    if owner.cause:
        subject += f", {owner.cause}" if owner.cause.startswith("marked ") else f" ({owner.cause})"
    return subject


def _service(owner: Owner) -> str:
    return _join(f"Service {owner.label}", owner)


def _pod(owner: Owner) -> str:
    writer = f" ({owner.program})" if owner.program else ""
    if owner.detail.startswith("hostPort"):
        return f"{owner.detail} of pod {owner.label}{writer}" + (f" ({owner.cause})" if owner.cause else "")
    return _join(f"pod {owner.label}", owner) + writer


def _program(owner: Owner) -> str:
    return _join(owner.program or owner.kind, owner)


def _node(owner: Owner) -> str:
    return _join(f"node {owner.label}" if owner.name else "this node", owner)


def _administrator(owner: Owner) -> str:
    return _join("the administrator", owner)


def _policy(owner: Owner) -> str:
    words = KIND_WORDS.get(owner.kind, owner.kind)
    several = "," in owner.name
    names = " and ".join(f"{owner.namespace}/{n}" if owner.namespace else n for n in owner.name.split(","))
    subject = f"{words.removesuffix('y')}ies {names}" if several else f"{words} {owner.label}"
    return _join(subject, owner) + (f" ({owner.program})" if owner.program else "")


def _unknown(owner: Owner) -> str:
    return _join(f"{owner.program}, for an unknown object" if owner.program else "unknown", owner)


_PHRASES: dict[str, Callable[[Owner], str]] = {
    "Service": _service,
    "Pod": _pod,
    "Node": _node,
    "administrator": _administrator,
    **dict.fromkeys(POLICY_KINDS, _policy),
    "unknown": _unknown,
}


@dataclass(frozen=True)
class Endpoint:
    """One address behind a service port.

    Attributes:
        address: The IP address.
        port: The port.
        pod: (namespace, name) of the pod; ("", "") = the address belongs to no pod.
        node: Name of the node, "" = not known.
        ready: Whether the endpoint is ready.
        terminating: Whether its pod is being deleted; False also if the API does not say so (Kubernetes before 1.22).
        serving: Whether it is ready apart from terminating.
    """

    address: str
    port: int
    pod: tuple[str, str] = ("", "")
    node: str = ""
    ready: bool = True
    terminating: bool = False
    serving: bool = True

    @property
    def text(self) -> str:
        """The pod of the address, "pod default/web-a (node-1)"; "" = no pod."""
        return pod_text(*self.pod, self.node) if self.pod[1] else ""


@dataclass(frozen=True)
class ServicePort:
    """One port of a Service, the input of kube-proxy's rules.

    Attributes:
        namespace: Namespace of the Service.
        name: Name of the Service.
        port_name: Name of the port, "" = none.
        protocol: "tcp", "udp" or "sctp".
        port: The Service's port.
        node_port: The NodePort, 0 = none.
        health_port: The health check NodePort, 0 = none.
        cluster_ips: The ClusterIPs; empty = headless.
        external_ips: The external IPs of the Service.
        balancer_ips: The load balancer's IPs of the Service.
        local: externalTrafficPolicy is Local.
    """

    namespace: str
    name: str
    port_name: str
    protocol: str
    port: int
    node_port: int = 0
    health_port: int = 0
    cluster_ips: tuple[str, ...] = ()
    external_ips: tuple[str, ...] = ()
    balancer_ips: tuple[str, ...] = ()
    local: bool = False

    @property
    def label(self) -> str:
        """kube-proxy's svcPortName: ns/name, and :port where the port has a name."""
        return f"{self.namespace}/{self.name}" + (f":{self.port_name}" if self.port_name else "")

    @property
    def reference(self) -> ObjectReference:
        """The Service."""
        return ObjectReference("Service", self.namespace, self.name)

    def owner(self, detail: str = "", evidence: str = "", program: str = "", target: str = "") -> Owner:
        return Owner("Service", self.namespace, self.name, self.port_name, program, detail, target, "", evidence)


@dataclass(frozen=True)
class ServiceTimes:
    """When the API's objects of a Service were made and changed, by the API's own clock.

    Attributes:
        created: When the Service was made, s since the epoch; 0 = not known.
        changed: When the Service or one of its EndpointSlices was changed last, s since the epoch; 0 = not known.
        is_for_kube_proxy: kube-proxy has to write rules for it. Labels leave a Service to another program.
    """

    created: int = 0
    changed: int = 0
    is_for_kube_proxy: bool = True


@dataclass(frozen=True)
class HostPort:
    """A hostPort of a pod's container.

    Attributes:
        port: The port on the node.
        container_port: The container's port.
        protocol: The protocol.
        host: The node's address, "" = all addresses.
    """

    port: int
    container_port: int
    protocol: str
    host: str = ""


@dataclass(frozen=True)
class NamedPort:
    """A container port with a name.

    Attributes:
        name: Its name.
        port: The container's port.
        protocol: The protocol.
    """

    name: str
    port: int
    protocol: str


@dataclass(frozen=True)
class Pod:
    """A running pod: it has an address and has not terminated.

    Attributes:
        namespace: Its namespace.
        name: Its name.
        node: Name of its node.
        addresses: Its IP addresses.
        host_network: It uses the node's network, so its address is the node's.
        host_ports: Its hostPorts.
        ports: Its container ports.
        labels: Its labels, key and value.
        controllers: The objects that control it, kind and name: ("ReplicaSet", "web-5d4f8c7b9").
        named_ports: Its container ports with names.
    """

    namespace: str
    name: str
    node: str = ""
    addresses: tuple[str, ...] = ()
    host_network: bool = False
    host_ports: tuple[HostPort, ...] = ()
    ports: tuple[int, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    controllers: tuple[tuple[str, str], ...] = ()
    named_ports: tuple[NamedPort, ...] = ()

    def owner(self, detail: str = "", evidence: str = "", program: str = "") -> Owner:
        return Owner("Pod", self.namespace, self.name, "", program, detail, "", "", evidence)


@dataclass(frozen=True)
class KubeNode:
    """A node: its name, its addresses, and its pod networks (CIDRs as the API writes them)."""

    name: str
    addresses: tuple[str, ...] = ()
    pod_cidrs: tuple[str, ...] = ()


def pod_text(namespace: str, name: str, node: str) -> str:
    """Formats a pod: "pod default/web-a (node-1)"."""
    return f"pod {namespace}/{name}" + (f" ({node})" if node else "")


_POD_TEXT = re.compile(r"pod ([^/ ]+)/([^/ ]+)(?: \([^()]+\))?")


def pod_of_text(text: str) -> tuple[str, str]:
    """The inverse of `pod_text`: (namespace, name) of a pod; ("", "") = the text names no pod."""
    found = _POD_TEXT.fullmatch(text)
    return (found[1], found[2]) if found else ("", "")
