# SPDX-License-Identifier: Apache-2.0
"""The indexes of Kubernetes objects, and the entries that each object has in them."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from ipaddress import ip_network
from typing import Any

from tracer.kube.chain_names import endpoint_hash, service_hash
from tracer.kube.policies import calico_names, kube_router_names
from tracer.model.kube import Endpoint, KubeNode, Pod, ServicePort, ServiceTimes
from tracer.model.policy import NetworkPolicy, PolicyNamespace
from tracer.util.multidict import MultiIndex

Name = tuple[str, str]
"""namespace, name."""

Entry = tuple[MultiIndex[Any, Any], Hashable, Any]
"""Index, key, value."""


class ObjectIndexes:
    """Services, endpoints, pods and nodes, indexed by what a packet or a rule shows of them.

    Attributes:
        by_address: (address, port, protocol) -> (service port, "cluster IP" / "external IP" / "load balancer IP").
        by_node_port: (port, protocol) -> service port.
        by_health_port: Health check port -> service port.
        by_chain: The hash in KUBE-SVC- -> service port.
        by_endpoint_chain: The hash in KUBE-SEP- -> (service port, endpoint).
        endpoints: (ns/name:port, protocol) of a service port -> its endpoints.
        times: (namespace, name) of a Service -> when its objects were made and changed.
        by_endpoint: (address, port, protocol) of an endpoint -> its service ports.
        policies: (namespace, name) -> NetworkPolicy.
        policies_of: Namespace -> its NetworkPolicies.
        by_policy_chain: A chain of Calico without its prefix -> NetworkPolicy.
        by_policy_set: The hash in an ipset of kube-router -> NetworkPolicy.
        by_calico_interface: The hash in an interface of Calico -> pod.
        namespaces: Name -> namespace with its labels, which the API is not asked for.
    """

    def __init__(self) -> None:
        self.services: MultiIndex[Name, ServicePort] = MultiIndex()
        self.by_address: MultiIndex[tuple[str, int, str], tuple[ServicePort, str]] = MultiIndex()
        self.by_service_ip: MultiIndex[str, Name] = MultiIndex()
        self.by_node_port: MultiIndex[tuple[int, str], ServicePort] = MultiIndex()
        self.by_health_port: MultiIndex[int, ServicePort] = MultiIndex()
        self.by_chain: MultiIndex[str, ServicePort] = MultiIndex()
        self.by_endpoint_chain: MultiIndex[str, tuple[ServicePort, Endpoint]] = MultiIndex()
        self.endpoints: MultiIndex[tuple[str, str], Endpoint] = MultiIndex()
        self.times: MultiIndex[Name, ServiceTimes] = MultiIndex()
        self.by_endpoint: MultiIndex[tuple[str, int, str], ServicePort] = MultiIndex()
        self.endpoint_pods: MultiIndex[str, tuple[str, str, str]] = MultiIndex()
        self.pods: MultiIndex[Name, Pod] = MultiIndex()
        self.by_pod_ip: MultiIndex[str, Pod] = MultiIndex()
        self.by_host_port: MultiIndex[tuple[int, str], Pod] = MultiIndex()
        self.nodes: MultiIndex[str, KubeNode] = MultiIndex()
        self.by_node_ip: MultiIndex[str, KubeNode] = MultiIndex()
        self.by_pod_cidr: MultiIndex[str, KubeNode] = MultiIndex()
        self.pod_prefixes: MultiIndex[str, int] = MultiIndex()
        self.policies: MultiIndex[Name, NetworkPolicy] = MultiIndex()
        self.policies_of: MultiIndex[str, NetworkPolicy] = MultiIndex()
        self.by_policy_chain: MultiIndex[str, NetworkPolicy] = MultiIndex()
        self.by_policy_set: MultiIndex[str, NetworkPolicy] = MultiIndex()
        self.by_calico_interface: MultiIndex[str, Pod] = MultiIndex()
        self.namespaces: MultiIndex[str, PolicyNamespace] = MultiIndex()

    def pod_entries(self, pod: Pod) -> list[Entry]:
        """Returns the index entries of a pod."""
        entries: list[Entry] = [(self.pods, (pod.namespace, pod.name), pod)]
        if not pod.host_network:
            entries += [(self.by_pod_ip, a, pod) for a in pod.addresses]
            entries += [(self.by_host_port, (h.port, h.protocol), pod) for h in pod.host_ports]
            entries.append((self.by_calico_interface, calico_names.interface_hash(pod.namespace, pod.name), pod))
        return entries

    def policy_entries(self, policy: NetworkPolicy) -> list[Entry]:
        """Returns the index entries of a NetworkPolicy."""
        name = (policy.namespace, policy.name)
        entries: list[Entry] = [(self.policies, name, policy), (self.policies_of, policy.namespace, policy)]
        entries += [(self.by_policy_chain, chain, policy) for chain in calico_names.chains_of(*name)]
        entries += [(self.by_policy_set, digest, policy) for digest in kube_router_names.target_hashes(*name)]
        return entries

    def namespace_entries(self, namespace: PolicyNamespace) -> list[Entry]:
        """Returns the index entry of a namespace."""
        return [(self.namespaces, namespace.name, namespace)]

    def node_entries(self, node: KubeNode) -> list[Entry]:
        """Returns the index entries of a node."""
        entries: list[Entry] = [(self.nodes, node.name, node)]
        entries += [(self.by_node_ip, a, node) for a in node.addresses]
        entries += [(self.by_pod_cidr, c, node) for c in node.pod_cidrs]
        entries += [(self.pod_prefixes, "", int(c.partition("/")[2] or 0)) for c in node.pod_cidrs]
        return entries

    def port_entries(self, name: Name, port: ServicePort, ends: list[Endpoint]) -> list[Entry]:
        """Returns the index entries of a service port and its endpoints."""
        entries: list[Entry] = [(self.services, name, port)]
        addresses = (
            ("cluster IP", port.cluster_ips),
            ("external IP", port.external_ips),
            ("load balancer IP", port.balancer_ips),
        )
        for what, ips in addresses:
            entries += [(self.by_address, (ip, port.port, port.protocol), (port, what)) for ip in ips]
            entries += [(self.by_service_ip, ip, name) for ip in ips]
        if port.node_port:
            entries.append((self.by_node_port, (port.node_port, port.protocol), port))
        if port.health_port:
            entries.append((self.by_health_port, port.health_port, port))
        entries.append((self.by_chain, service_hash(port.label, port.protocol), port))
        for end in ends:
            chain = endpoint_hash(port.label, port.protocol, end.address, end.port)
            entries.append((self.by_endpoint_chain, chain, (port, end)))
            entries.append((self.endpoints, (port.label, port.protocol), end))
            entries.append((self.by_endpoint, (end.address, end.port, port.protocol), port))
            if end.pod[1]:
                entries.append((self.endpoint_pods, end.address, (*end.pod, end.node)))
        return entries

    def pod_at(self, address: str) -> tuple[str, str, str] | None:
        """Returns (namespace, name, node) of the pod with this address; None = none, or ambiguous.

        Pods of other nodes are known only as endpoints. A pod in the host's network has no address of its own.
        """
        pods = self.by_pod_ip.all(address)
        if pods:
            return (pods[0].namespace, pods[0].name, pods[0].node) if len(pods) == 1 else None
        return None if self.by_node_ip.all(address) else self.endpoint_pods.one(address)

    def node_of_network(self, address: str) -> KubeNode | None:
        """Returns the node with the podCIDR that contains an address."""
        for prefix in self.pod_prefixes.all(""):
            found = self.by_pod_cidr.one(_network(address, prefix))
            if found:
                return found
        return None


@lru_cache(8192)
def _network(address: str, prefix: int) -> str:
    try:
        return str(ip_network((address, prefix), strict=False))
    except ValueError:
        return ""
