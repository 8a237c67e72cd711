# SPDX-License-Identifier: Apache-2.0
"""The nodes that can matter to a run: those of the selected objects, those of the clients, or all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tracer.errors import BadOption, NoSuchObject
from tracer.kube import end_names, selectors
from tracer.kube.catalog import ClusterView
from tracer.kube.selectors import Selectors

MOST_NODES = 200
"""Largest number of nodes of one run. docs/cluster.md has the figures."""


@dataclass(frozen=True)
class NodeRequest:
    """The options that choose nodes.

    Attributes:
        nodes: Names of nodes.
        clients: Objects that send: pod/NS/NAME, deploy/NS/NAME, node/NAME.
        selectors: The objects that packets are selected by.
    """

    nodes: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()
    selectors: Selectors = field(default_factory=Selectors)


def choose(request: NodeRequest, cluster: ClusterView) -> list[str]:
    """The names of the nodes, sorted. cluster: with all Nodes, Services, endpoints and pods.

    Raises:
        NoSuchObject: A node or an object does not exist.
        BadOption: There are more than MOST_NODES, or none.
    """
    known = {node.name for node in cluster.store.nodes.values()}
    for name in request.nodes:
        if name not in known:
            raise NoSuchObject(f"There is no node {name}.")
    found = set(request.nodes) | set(_client_nodes(request.clients, known, cluster))
    if not request.nodes:
        found |= selected_nodes(request.selectors, cluster)
    if not found and not request.selectors.has_either_end:
        found = known
    if not found:
        raise BadOption("No node has a pod of the selected objects: choose nodes with --node.")
    if len(found) > MOST_NODES:
        raise BadOption(f"{len(found)} nodes are too many for one stream, which takes {MOST_NODES}: choose some with --node.")
    return sorted(found & known)


def selected_nodes(request: Selectors, cluster: ClusterView) -> set[str]:
    """The nodes of the pods of selected objects. A NodePort or a hostPort can be reached through any node.

    Raises:
        NoSuchObject: A named object does not exist.
    """
    if not request:
        return set()
    selectors.check(replace(request, host_ports=()), cluster)
    addresses = {address for address, _, _ in selectors.ends(request, cluster) if address}
    directed = selectors.directed_ends(request, cluster)
    for ends in (directed.sources, directed.destinations):
        addresses |= {address for address, _, _ in ends or () if address}
    nodes = set(_nodes_of(addresses, cluster))
    if request.node_ports or request.host_ports:
        nodes |= {node.name for node in cluster.store.nodes.values()}
    return nodes


def _nodes_of(addresses: Iterable[str], cluster: ClusterView) -> Iterator[str]:
    store = cluster.store
    wanted = set(addresses)
    for pod in store.pods.values():
        if pod.node and wanted.intersection(pod.addresses):
            yield pod.node
    for end in store.endpoints.values():
        if end.node and end.address in wanted:
            yield end.node
    for node in store.nodes.values():
        if wanted.intersection(node.addresses):
            yield node.name


def _client_nodes(clients: Sequence[str], known: set[str], cluster: ClusterView) -> Iterator[str]:
    for word in clients:
        kind, _, name = word.partition("/")
        if kind in ("node", "no"):
            if name not in known:
                raise NoSuchObject(f"There is no node {name}.")
            yield name
            continue
        full = word if end_names.is_name(word) and not end_names.is_without_namespace(word) else f"pod/{word}"
        field, value = end_names.selector_of("--from", full)
        yield from selected_nodes(replace(Selectors(), **{field: (value,)}), cluster)  # type: ignore[arg-type]


def addresses_of(request: Selectors, cluster: ClusterView) -> tuple[str, ...]:
    """The addresses of selected objects, for a node that cannot look them up itself."""
    return tuple(sorted({address for address, _, _ in selectors.ends(request, cluster) if address}))


def has_local_pods(request: Selectors, local: set[tuple[str, str]], cluster: ClusterView) -> bool:
    """Whether each word that names pods selects one of these pods (namespace and name)."""
    addresses = {a: (pod.namespace, pod.name) for pod in cluster.store.pods.values() for a in pod.addresses}
    for name in ("pods", "workloads", "labels", "host_ports"):
        for word in getattr(request, name):
            one = replace(Selectors(), namespaces=request.namespaces if name == "labels" else (), **{name: (word,)})
            if not any(addresses.get(address) in local for address, _, _ in selectors.ends(one, cluster)):
                return False
    return True


def directed_addresses(request: Selectors, name: str, cluster: ClusterView) -> tuple[str, ...]:
    """The addresses of the objects that --src or --dst names. name: "sources" or "destinations"."""
    ends = getattr(selectors.directed_ends(request, cluster), name) or ()
    return tuple(sorted({address for address, _, _ in ends if address}))
