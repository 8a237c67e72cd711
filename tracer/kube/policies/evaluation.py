# SPDX-License-Identifier: Apache-2.0
"""What the NetworkPolicies of the API allow: yes, no, or not known.

Policies of one pod and direction are joined by "or", and so are the rules of a policy; without any policy everything is
allowed. A rule needs one of its peers and one of its ports. Not known are the labels of pods that are known only as
endpoints, labels of namespaces except their name, and the ports behind a name if the pod is not known. Policies do not limit
a pod in the host's network, and not what the pod's own node sends to it.
Source: kubernetes.io/docs/concepts/services-networking/network-policies, staging/src/k8s.io/api/networking/v1/types.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address, ip_network

from tracer.kube.catalog import ClusterView
from tracer.model.kube import Pod
from tracer.model.policy import (
    INGRESS,
    LabelSelector,
    NetworkPolicy,
    PolicyPeer,
    PolicyPort,
    PolicyRule,
    SelectorTerm,
)

NAME_LABEL = "kubernetes.io/metadata.name"
"""The label with its name that each namespace has, since Kubernetes 1.21."""

Known = bool | None
"""None = not known."""


@dataclass(frozen=True)
class TrafficEnd:
    """One end of a packet.

    Attributes:
        address: Its address.
        pod: The pod with this address, if the API gave it with labels.
        name: (namespace, name) of the pod, also if nothing else is known of it; ("", "") = not known to be a pod.
        is_node: It is a node, or a pod in the network of one.
    """

    address: str
    pod: Pod | None = None
    name: tuple[str, str] = ("", "")
    is_node: bool = False

    @property
    def text(self) -> str:
        if self.name[1]:
            return f"pod {'/'.join(self.name)}"
        return f"node {self.address}" if self.is_node else self.address


@dataclass(frozen=True)
class RuleAnswer:
    """Whether a rule allows a packet: whether one of its peers is meant, and one of its ports."""

    number: int
    rule: PolicyRule
    peer: Known
    port: Known

    @property
    def allows(self) -> Known:
        return _all((self.peer, self.port))


@dataclass(frozen=True)
class PolicyAnswer:
    """Whether a policy allows a packet, and the answer of each of its rules."""

    policy: NetworkPolicy
    rules: tuple[RuleAnswer, ...]

    @property
    def allows(self) -> Known:
        return _any(answer.allows for answer in self.rules)


@dataclass(frozen=True)
class DirectionAnswer:
    """Whether all policies of a pod allow a packet in one direction.

    Attributes:
        direction: INGRESS or EGRESS.
        pod: The pod.
        other: The other end.
        policies: The answers of the policies that select the pod; () = none does.
        exempt: Why policies do not limit this packet, as a clause; "" = they do.
    """

    direction: str
    pod: Pod
    other: TrafficEnd
    policies: tuple[PolicyAnswer, ...] = ()
    exempt: str = ""

    @property
    def allows(self) -> Known:
        return not self.policies or bool(self.exempt) or _any(answer.allows for answer in self.policies)


def end_at(address: str, cluster: ClusterView) -> TrafficEnd:
    """Returns what is known of the end of a packet with this address."""
    is_node = bool(cluster.store.by_node_ip.all(address)) or cluster.is_local(address)
    found = None if is_node else cluster.pod_at(address)
    if not found:
        return TrafficEnd(address, is_node=is_node)
    return TrafficEnd(address, cluster.store.pods.one(found[:2]), found[:2])


def evaluate(
    direction: str, pod: Pod, source: str, destination: str, protocol: str, port: int, cluster: ClusterView
) -> DirectionAnswer:
    """Evaluates the policies of a pod for a packet that opens a connection.

    Args:
        direction: INGRESS: the pod is the destination; EGRESS: it is the source.
        pod: The pod.
        source: The packet's source address, after all translations before the rules of policies.
        destination: Its destination address.
        protocol: "tcp", "udp" or "sctp".
        port: Its destination port.
        cluster: The objects.

    Returns:
        The answer of each policy that selects the pod in this direction.
    """
    other = end_at(source if direction == INGRESS else destination, cluster)
    exempt = ""
    if pod.host_network:
        exempt = "the pod is in the network of its node"
    elif direction == INGRESS and other.is_node and _is_node_of(pod, source, cluster):
        exempt = "the pod's own node sent it"
    target = pod if direction == INGRESS else other.pod
    answers = []
    for policy in selecting(pod, direction, cluster):
        rules = [
            RuleAnswer(
                number,
                rule,
                _any(_is_peer(peer, other, policy, cluster) for peer in rule.peers) if rule.peers else True,
                _any(_is_port(each, protocol, port, target) for each in rule.ports) if rule.ports else True,
            )
            for number, rule in enumerate(policy.rules(direction), 1)
        ]
        answers.append(PolicyAnswer(policy, tuple(rules)))
    return DirectionAnswer(direction, pod, other, tuple(answers), exempt)


def selecting(pod: Pod, direction: str, cluster: ClusterView) -> list[NetworkPolicy]:
    """Returns the policies that limit a pod in one direction, by name."""
    labels = dict(pod.labels)
    found = [p for p in cluster.store.policies_of.all(pod.namespace) if direction in p.directions and selects(p.pods, labels)]
    return sorted(found, key=lambda policy: policy.name)


def selects(selector: LabelSelector, labels: Mapping[str, str], is_complete: bool = True) -> Known:
    """Whether a selector selects an object with these labels. is_complete: it has no other labels."""
    return _all(_is_met(term, labels, is_complete) for term in selector.terms)


def _is_met(term: SelectorTerm, labels: Mapping[str, str], is_complete: bool) -> Known:
    value = labels.get(term.key)
    if value is None and not is_complete:
        return None
    if term.operator == "Exists":
        return value is not None
    if term.operator == "DoesNotExist":
        return value is None
    return (value in term.values) == (term.operator == "In")


def _is_node_of(pod: Pod, address: str, cluster: ClusterView) -> bool:
    if pod.node == cluster.store.node and cluster.is_local(address):
        return True
    return any(node.name == pod.node for node in cluster.store.by_node_ip.all(address))


def _is_peer(peer: PolicyPeer, end: TrafficEnd, policy: NetworkPolicy, cluster: ClusterView) -> Known:
    if peer.block:
        return _is_in(end.address, peer.block) and not any(_is_in(end.address, network) for network in peer.exceptions)
    if end.is_node:
        return False
    if not end.name[1]:
        return None
    in_namespace: Known = end.name[0] == policy.namespace
    if peer.namespaces is not None:
        found = cluster.store.namespaces.one(end.name[0])
        labels = dict(found.labels) if found else {NAME_LABEL: end.name[0]}
        in_namespace = selects(peer.namespaces, labels, found is not None)
    if peer.pods is None or not peer.pods.terms:
        return in_namespace
    return _all((in_namespace, selects(peer.pods, dict(end.pod.labels)) if end.pod else None))


@lru_cache(8192)
def _is_in(address: str, network: str) -> bool:
    try:
        return ip_address(address) in ip_network(network)
    except ValueError:
        return False


def _is_port(wanted: PolicyPort, protocol: str, port: int, target: Pod | None) -> Known:
    if wanted.protocol != protocol:
        return False
    if wanted.name:
        if target is None:
            return None
        return any((p.name, p.port, p.protocol) == (wanted.name, port, protocol) for p in target.named_ports)
    if not wanted.port:
        return True
    return wanted.port <= port <= max(wanted.port, wanted.end)


def _all(values: Iterable[Known]) -> Known:
    found = list(values)
    return False if False in found else None if None in found else True


def _any(values: Iterable[Known]) -> Known:
    found = list(values)
    return True if True in found else None if None in found else False
