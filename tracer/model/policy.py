# SPDX-License-Identifier: Apache-2.0
"""NetworkPolicies of Kubernetes, and what a rule that carries one out shows of it."""

from __future__ import annotations

from dataclasses import dataclass

INGRESS, EGRESS = "ingress", "egress"
POLICY_KINDS = ("NetworkPolicy", "GlobalNetworkPolicy", "CalicoNetworkPolicy", "AntreaClusterNetworkPolicy")
"""Kinds of owners that are policies. CalicoNetworkPolicy: the NetworkPolicy of projectcalico.org.
AntreaClusterNetworkPolicy: the ClusterNetworkPolicy of crd.antrea.io."""


@dataclass(frozen=True)
class SelectorTerm:
    """One condition of a label selector.

    Attributes:
        key: The label.
        operator: "In", "NotIn", "Exists" or "DoesNotExist". An entry of matchLabels is "In" with one value.
        values: The values of In and NotIn.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabelSelector:
    """Conditions that must all be met; () = everything is selected."""

    terms: tuple[SelectorTerm, ...] = ()


@dataclass(frozen=True)
class PolicyPort:
    """Ports that a rule allows.

    Attributes:
        protocol: "tcp", "udp" or "sctp".
        port: The port, 0 = all ports, or `name` is given.
        end: The last port of a range, 0 = no range.
        name: Name of a container port, "" = none.
    """

    protocol: str = "tcp"
    port: int = 0
    end: int = 0
    name: str = ""


@dataclass(frozen=True)
class PolicyPeer:
    """Other ends that a rule allows.

    Attributes:
        pods: Selects pods; None = not given.
        namespaces: Selects namespaces; None = the policy's own namespace.
        block: A network (CIDR); "" = pods are selected.
        exceptions: Networks inside of it that are not meant.
    """

    pods: LabelSelector | None = None
    namespaces: LabelSelector | None = None
    block: str = ""
    exceptions: tuple[str, ...] = ()


@dataclass(frozen=True)
class PolicyRule:
    """One rule: it allows these ends with these ports; no peers = all ends, no ports = all ports."""

    peers: tuple[PolicyPeer, ...] = ()
    ports: tuple[PolicyPort, ...] = ()


@dataclass(frozen=True)
class NetworkPolicy:
    """A NetworkPolicy of networking.k8s.io.

    Attributes:
        namespace: Its namespace, which is that of the pods that it selects.
        name: Its name.
        pods: Selects the pods that it is for.
        directions: The directions in which it limits them.
        ingress: What may reach them.
        egress: What they may reach.
    """

    namespace: str
    name: str
    pods: LabelSelector = LabelSelector()
    directions: tuple[str, ...] = (INGRESS,)
    ingress: tuple[PolicyRule, ...] = ()
    egress: tuple[PolicyRule, ...] = ()

    def rules(self, direction: str) -> tuple[PolicyRule, ...]:
        return self.ingress if direction == INGRESS else self.egress


@dataclass(frozen=True)
class PolicyNamespace:
    """A namespace and its labels, key and value."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class PolicyName:
    """The name of a policy, as a rule shows it.

    Attributes:
        kind: One of POLICY_KINDS.
        namespace: "" for a policy without a namespace.
        name: Its name.
        evidence: How it is known.
    """

    kind: str
    namespace: str
    name: str
    evidence: str = ""

    @property
    def label(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def text(self) -> str:
        """For example "NetworkPolicy shop/deny-all"."""
        return f"{KIND_WORDS.get(self.kind, self.kind)} {self.label}"


KIND_WORDS = {
    "CalicoNetworkPolicy": "Calico NetworkPolicy",
    "AntreaClusterNetworkPolicy": "Antrea ClusterNetworkPolicy",
}


@dataclass(frozen=True)
class AppliedPolicy:
    """A policy that a program's chain applies to a pod.

    Attributes:
        chain: The chain of the policy.
        direction: INGRESS or EGRESS; "" = both.
        candidates: The policies that it may be; one = known, () = unknown.
    """

    chain: str
    direction: str
    candidates: tuple[PolicyName, ...]

    @property
    def text(self) -> str:
        if not self.candidates:
            return f"an unknown policy (chain {self.chain})"
        return " or ".join(c.text for c in self.candidates)


@dataclass(frozen=True)
class PolicyDenial:
    """What a rule that denies packets shows of policies.

    Attributes:
        program: The program that wrote the rule.
        policies: The policies that the packet has met: those of which none allowed it, or the one that denied it.
        direction: INGRESS or EGRESS of the pod; "" = the rule is for both.
        pod: (namespace, name) of the pod that the policies select; ("", "") = not known.
        address: Address of the pod, "" = not shown.
        is_rule: A rule of the policy itself denied the packet. Otherwise no policy allowed it.
    """

    program: str
    policies: tuple[AppliedPolicy, ...]
    direction: str = ""
    pod: tuple[str, str] = ("", "")
    address: str = ""
    is_rule: bool = False
