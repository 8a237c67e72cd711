# SPDX-License-Identifier: Apache-2.0
"""The nouns of Kubernetes: an owner, a service port, an endpoint, a pod, a node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Owner:
    """Whose a rule, a rewrite or one end of a packet is.

    kind: "Service", "Pod", "Node", "program" (a program's own rule, for no object), "administrator", "external", "unknown".
    namespace, name, port: of the object; port by its name, "" when it has none. program: who wrote the rule, "" for an end.
    detail: what of the owner it is: "NodePort 30285", "hostPort 3306", "KUBE-FIREWALL". target: where it leads:
    "pod default/web-a (node-1)". cause: a clause, why it acted: what set the mark that it looks for. evidence: how all this
    is known: "comment", "chain name", "API: chain hash", "CNI result cache".
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
        """The object as Kubernetes writes it: default/http-proxy:http, node-1; "" when there is none."""
        where = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return f"{where}:{self.port}" if self.port else where

    @property
    def text(self) -> str:
        """One phrase: "Service default/http-proxy:http, NodePort 30285 -> pod default/web-a (node-1)"."""
        return _PHRASES.get(self.kind, _program)(self) + (f" -> {self.target}" if self.target else "")


UNKNOWN = Owner("unknown")


def _join(subject: str, owner: Owner) -> str:
    """A chain's name stands right after the program that wrote it; whatever else is known is a clause."""
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


def _unknown(owner: Owner) -> str:
    return _join(f"{owner.program}, for whom is unknown" if owner.program else "unknown", owner)


_PHRASES: dict[str, Callable[[Owner], str]] = {
    "Service": _service,
    "Pod": _pod,
    "Node": _node,
    "administrator": _administrator,
    "unknown": _unknown,
}


@dataclass(frozen=True)
class Endpoint:
    """One address behind a service port. pod: (namespace, name), ("", "") when it is no pod's. node: "" when not told."""

    address: str
    port: int
    pod: tuple[str, str] = ("", "")
    node: str = ""
    ready: bool = True

    @property
    def text(self) -> str:
        """Where it leads: pod default/web-a (node-1)."""
        return pod_text(*self.pod, self.node) if self.pod[1] else ""


@dataclass(frozen=True)
class ServicePort:
    """One port of a Service: what kube-proxy makes its rules from.

    port_name: "" when it has none. protocol: "tcp", "udp", "sctp". node_port, health_port: 0 when it has none.
    cluster_ips: empty when headless. external_ips and balancer_ips as the Service has them. local: its
    externalTrafficPolicy is Local.
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

    def owner(self, detail: str = "", evidence: str = "", program: str = "", target: str = "") -> Owner:
        return Owner("Service", self.namespace, self.name, self.port_name, program, detail, target, "", evidence)


@dataclass(frozen=True)
class HostPort:
    """A port of the node that a pod's container asks for. host: the address of the node, "" = all of them."""

    port: int
    container_port: int
    protocol: str
    host: str = ""


@dataclass(frozen=True)
class Pod:
    """A pod that lives: it has an address, and has not ended. host_network: its address is its node's."""

    namespace: str
    name: str
    node: str = ""
    addresses: tuple[str, ...] = ()
    host_network: bool = False
    host_ports: tuple[HostPort, ...] = ()
    ports: tuple[int, ...] = ()

    def owner(self, detail: str = "", evidence: str = "", program: str = "") -> Owner:
        return Owner("Pod", self.namespace, self.name, "", program, detail, "", "", evidence)


@dataclass(frozen=True)
class KubeNode:
    """A node: its name, addresses, and the networks of its pods (CIDRs as the API writes them)."""

    name: str
    addresses: tuple[str, ...] = ()
    pod_cidrs: tuple[str, ...] = ()


def pod_text(namespace: str, name: str, node: str) -> str:
    """pod default/web-a (node-1)."""
    return f"pod {namespace}/{name}" + (f" ({node})" if node else "")
