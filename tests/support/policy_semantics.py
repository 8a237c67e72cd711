# SPDX-License-Identifier: Apache-2.0
"""What NetworkPolicies allow, computed from the objects' JSON in the plainest way, to compare the tracer and rules with.

It shares nothing with tracer/kube/policies. All pods, labels and namespaces are known here, so there are only two answers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]


@dataclass
class World:
    """A cluster. namespaces: name -> labels. node: the node on which rules are written."""

    pods: list[Object]
    policies: list[Object]
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)
    node: str = "node-1"

    @property
    def objects(self) -> list[Object]:
        """All objects of the API."""
        spaces = [{"kind": "Namespace", "metadata": {"name": n, "labels": labels}} for n, labels in self.namespaces.items()]
        return [*self.pods, *self.policies, *spaces]

    @property
    def local(self) -> list[Object]:
        """The pods of the node for which rules are written."""
        return [p for p in self.pods if p["spec"]["nodeName"] == self.node and not p["spec"].get("hostNetwork")]

    def at(self, address: str) -> Object | None:
        return next((p for p in self.pods if address_of(p) == address and not p["spec"].get("hostNetwork")), None)

    def selected(self, policy: Object) -> list[Object]:
        """The pods that a policy limits."""
        return [p for p in self._in(policy["metadata"]["namespace"]) if fits(policy["spec"]["podSelector"], labels_of(p))]

    def peers(self, policy: Object, peer: Object) -> list[Object]:
        """The pods that a peer of a rule means; [] for a network."""
        if "ipBlock" in peer:
            return []
        wanted = peer.get("namespaceSelector")
        spaces = [n for n, labels in self.namespaces.items() if wanted is not None and fits(wanted, labels)]
        if wanted is None:
            spaces = [policy["metadata"]["namespace"]]
        return [p for n in spaces for p in self._in(n) if fits(peer.get("podSelector") or {}, labels_of(p))]

    def policies_of(self, pod: Object, direction: str) -> list[Object]:
        """The policies that limit a pod in a direction, "Ingress" or "Egress"."""
        return [p for p in self.policies if direction in types_of(p) and any(q is pod for q in self.selected(p))]

    def _in(self, namespace: str) -> list[Object]:
        return [p for p in self.pods if p["metadata"]["namespace"] == namespace and not p["spec"].get("hostNetwork")]


def address_of(pod: Object) -> str:
    return str(pod["status"]["podIPs"][0]["ip"])


def labels_of(pod: Object) -> dict[str, str]:
    return dict(pod["metadata"].get("labels") or {})


def name_of(body: Object) -> str:
    return f"{body['metadata']['namespace']}/{body['metadata']['name']}"


def types_of(policy: Object) -> list[str]:
    spec = policy["spec"]
    return list(spec.get("policyTypes") or (["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]))


def fits(selector: Object, labels: dict[str, str]) -> bool:
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for term in selector.get("matchExpressions") or ():
        key, values = term["key"], term.get("values") or []
        good = {
            "In": key in labels and labels[key] in values, "NotIn": key not in labels or labels[key] not in values,
            "Exists": key in labels, "DoesNotExist": key not in labels,
        }[term["operator"]]  # fmt: skip
        if not good:
            return False
    return True


def ports_of(pod: Object) -> list[Object]:
    return [p for c in pod["spec"].get("containers") or () for p in c.get("ports") or ()]


def addresses_by_number(pods: Iterable[Object], name: str, protocol: str) -> dict[int, list[str]]:
    """The addresses of pods that have a port of this name, by the port's number."""
    found: dict[int, list[str]] = {}
    for pod in pods:
        for each in ports_of(pod):
            if each.get("name") == name and each.get("protocol", "TCP") == protocol:
                found.setdefault(each["containerPort"], []).append(address_of(pod))
    return found


def allowing_rules(world: World, policy: Object, direction: str, source: str, to: str, protocol: str, port: int) -> list[int]:
    """The numbers of the rules of a policy that allow a packet, from 1. protocol: "TCP" or "UDP"."""
    key, side, other = ("ingress", "from", source) if direction == "Ingress" else ("egress", "to", to)
    found = []
    for number, rule in enumerate(policy["spec"].get(key) or (), 1):
        peers, ports = rule.get(side) or [], rule.get("ports") or []
        good_peer = not peers or any(_means(world, policy, peer, other) for peer in peers)
        if good_peer and (not ports or any(_is_for(world, each, protocol, port, to) for each in ports)):
            found.append(number)
    return found


def _means(world: World, policy: Object, peer: Object, address: str) -> bool:
    block = peer.get("ipBlock")
    if block:
        one = ipaddress.ip_address(address)
        return one in ipaddress.ip_network(block["cidr"]) and not any(
            one in ipaddress.ip_network(network) for network in block.get("except") or ()
        )
    return any(address_of(p) == address for p in world.peers(policy, peer))


def _is_for(world: World, wanted: Object, protocol: str, port: int, to: str) -> bool:
    if (wanted.get("protocol") or "TCP") != protocol:
        return False
    number = wanted.get("port")
    if number is None:
        return True
    if isinstance(number, str):
        pod = world.at(to)
        return any(p.get("name") == number and p["containerPort"] == port and p.get("protocol", "TCP") == protocol
                   for p in (ports_of(pod) if pod else ()))  # fmt: skip
    return int(number) <= port <= int(wanted.get("endPort") or number)


@dataclass(frozen=True)
class Expected:
    """What must happen to a packet in one direction of one pod.

    Attributes:
        pod: Name of the pod.
        direction: "Ingress" or "Egress".
        policies: Names of the policies that limit it.
        rules: (policy, rule) that allow the packet; () with policies = denied.
    """

    pod: str
    direction: str
    policies: tuple[str, ...]
    rules: tuple[tuple[str, int], ...]

    @property
    def is_allowed(self) -> bool:
        return not self.policies or bool(self.rules)


def expected(world: World, source: str, to: str, protocol: str, port: int) -> list[Expected]:
    """What must happen at each local pod that the packet leaves or reaches, egress first."""
    found = []
    for direction, address in (("Egress", source), ("Ingress", to)):
        pod = world.at(address)
        if not pod or not any(p is pod for p in world.local):
            continue
        policies = world.policies_of(pod, direction)
        rules = [(name_of(p), n) for p in policies for n in allowing_rules(world, p, direction, source, to, protocol, port)]
        found.append(Expected(name_of(pod), direction, tuple(map(name_of, policies)), tuple(rules)))
    return found


def names(bodies: Iterable[Object]) -> list[str]:
    return [name_of(body) for body in bodies]
