# SPDX-License-Identifier: Apache-2.0
"""Converts the options that name Kubernetes' objects into addresses and ports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tracer.errors import BadOption, NoSuchObject
from tracer.kube import end_names, pod_selectors
from tracer.kube.catalog import ClusterView
from tracer.kube.pod_selectors import pods_of_labels, pods_of_workload
from tracer.kube.selected_ends import DIRECTED, LOCAL, DirectedEnds, End
from tracer.model.kube import Pod, ServicePort

NOT_COMBINED = (
    "--service, --pod, --node-port, --host-port, --namespace, --workload and -l cannot be combined with --port or --host."
)

_NAME = re.compile(r"(?:(?P<ns>[a-z0-9-]+)/)?(?P<name>[a-z0-9.-]+)(?::(?P<port>[a-z0-9-]+))?")


@dataclass(frozen=True)
class Selectors:
    """The options as given. A packet matches if any of them matches.

    Attributes:
        services: NS/NAME or NS/NAME:PORT.
        pods: NS/NAME.
        node_ports: NodePorts.
        host_ports: hostPorts.
        namespaces: Namespaces; with a name or a label, the namespaces that it is looked up in.
        workloads: NS/KIND/NAME.
        labels: Label selectors.
        sources: KIND/NS/NAME. The source of a matching packet must be one of them, whatever the other fields select.
        destinations: The same for the destination.
    """

    services: tuple[str, ...] = ()
    pods: tuple[str, ...] = ()
    node_ports: tuple[int, ...] = ()
    host_ports: tuple[int, ...] = ()
    namespaces: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    destinations: tuple[str, ...] = ()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Selectors:
        """Takes these options out of all options of a command. A name without a namespace gets that of --namespace."""
        found = {name: tuple(options.get(name) or ()) for name in cls.__dataclass_fields__}
        namespaces = found["namespaces"]
        for name, slashes in (("services", 1), ("pods", 1), ("workloads", 2)):
            bare = [word for word in found[name] if word.count("/") < slashes]
            if bare and len(namespaces) > 1:
                raise BadOption(f"{bare[0]!r} has no namespace, and there are several --namespace: write NS/{bare[0]}.")
            if bare and namespaces:
                found[name] = tuple(f"{namespaces[0]}/{word}" if word in bare else word for word in found[name])
        is_lookup_only = False
        for name, option in DIRECTED.items():
            values, found[name] = found[name], tuple(filter(end_names.is_name, found[name]))
            if len(values) > len(found[name]) > 0:
                raise BadOption(f"{option} takes names or addresses, not both in one run.")
            bare = [word for word in found[name] if end_names.is_without_namespace(word)]
            if bare and len(namespaces) > 1:
                raise BadOption(f"{bare[0]!r} has no namespace, and there are several --namespace: write KIND/NS/NAME.")
            if bare and namespaces:
                is_lookup_only = True
                found[name] = tuple(end_names.completed(w, namespaces[0]) if w in bare else w for w in found[name])
        if is_lookup_only and not found["labels"]:
            found["namespaces"] = ()
        return cls(**found)

    def __post_init__(self) -> None:
        for option, words in (("--service", self.services), ("--pod", self.pods)):
            for word in words:
                found = _NAME.fullmatch(word)
                if not found or (option == "--pod" and found["port"]):
                    form = "namespace/name or namespace/name:port" if option == "--service" else "namespace/name"
                    raise BadOption(f"{option} {word!r} is no name: write {form}.")
        pod_selectors.check_words(self.namespaces, self.workloads, self.labels)
        for name, option in DIRECTED.items():
            for word in getattr(self, name):
                end_names.selector_of(option, word)
        for option, ports in (("--node-port", self.node_ports), ("--host-port", self.host_ports)):
            for port in ports:
                if not 0 < port < 65536:
                    raise BadOption(f"{option} {port} does not exist: ports go from 1 to 65535.")

    def __bool__(self) -> bool:
        return bool(self.need_names or self.node_ports or self.host_ports)

    @property
    def need_names(self) -> bool:
        """Whether tracing needs the API's objects before it can start."""
        return bool(
            self.services or self.pods or self.namespaces or self.workloads or self.labels or self.sources or self.destinations
        )

    @property
    def has_either_end(self) -> bool:
        """Whether a field selects packets by an object at either end."""
        names = self.services, self.pods, self.namespaces, self.workloads, self.labels
        return any(names) or bool(self.node_ports or self.host_ports)

    @property
    def is_one_sided(self) -> bool:
        """Whether the packets of one direction of a connection may be selected without those of the other one."""
        return bool(self.sources or self.destinations)

    def of_direction(self, name: str) -> Iterator[Selectors]:
        """For each name of `sources` or `destinations`, what selects the same objects at either end."""
        for word in getattr(self, name):
            field, value = end_names.selector_of(DIRECTED[name], word)
            yield replace(Selectors(), **{field: (value,)})  # type: ignore[arg-type]  # a field of names

    @property
    def whole_namespaces(self) -> tuple[str, ...]:
        """The namespaces of which every object is selected: no name and no label chooses among their objects."""
        return () if self.services or self.pods or self.workloads or self.labels else self.namespaces


def check(selectors: Selectors, cluster: ClusterView) -> None:
    """Raises NoSuchObject for the first object that Kubernetes does not have. All objects must have been read."""
    for word in selectors.services:
        if not _ports_of(word, cluster):
            raise NoSuchObject(_no_service(word, cluster))
    for word in selectors.pods:
        if not cluster.store.pods.all(_name(word)) and not _addresses(word, cluster):
            raise NoSuchObject(f"There is no pod {'/'.join(_name(word))} on this node or behind a Service.")
    for word in selectors.workloads:
        if not list(pods_of_workload(word, cluster.store)):
            raise NoSuchObject(f"There is no pod of {word} on this node.")
    for word in selectors.labels:
        if not list(pods_of_labels(word, selectors.namespaces, cluster.store)):
            raise NoSuchObject(f"There is no pod with the labels {word} on this node.")
    for word in selectors.whole_namespaces:
        if not list(_namespace_ends(word, cluster)):
            raise NoSuchObject(f"There is no Service in namespace {word}, and no pod of it on this node.")
    for port in selectors.node_ports:
        if not any(cluster.store.by_node_port.all((port, proto)) for proto in ("tcp", "udp", "sctp")):
            raise NoSuchObject(f"No Service has NodePort {port}.")
    for port in selectors.host_ports:
        if not list(_host_ends(port, cluster)):
            raise NoSuchObject(f"No pod of this node has hostPort {port}.")
    for name in DIRECTED:
        for each in selectors.of_direction(name):
            check(each, cluster)


def _no_service(word: str, cluster: ClusterView) -> str:
    namespace, name = _name(word)
    ports = cluster.store.services.all((namespace, name))
    if ports:
        names = ", ".join(p.port_name or str(p.port) for p in ports)
        return f"Service {namespace}/{name} has no port {word.rpartition(':')[2]} (it has: {names})."
    others = sorted({f"{p.namespace}/{p.name}" for p in cluster.store.services.values() if p.name == name})
    return f"There is no Service {namespace}/{name}" + (f" (there is {', '.join(others[:3])})." if others else ".")


def _name(word: str) -> tuple[str, str]:
    found = _NAME.fullmatch(word)
    assert found
    return found["ns"] or "default", found["name"]


def _ports_of(word: str, cluster: ClusterView) -> list[ServicePort]:
    found = _NAME.fullmatch(word)
    ports = cluster.store.services.all(_name(word))
    wanted = found["port"] if found else None
    return [p for p in ports if wanted in (None, p.port_name, str(p.port))]


def ends(selectors: Selectors, cluster: ClusterView) -> frozenset[End]:
    """Returns the addresses and ports that are selected at either end, by the current objects."""
    return frozenset(_ends(selectors, cluster))


def directed_ends(selectors: Selectors, cluster: ClusterView) -> DirectedEnds:
    """Returns the addresses and ports that are selected as source and as destination, by the current objects."""

    def found(name: str) -> frozenset[End] | None:
        named = list(selectors.of_direction(name))
        return frozenset(end for each in named for end in _ends(each, cluster)) if named else None

    return DirectedEnds(found("sources"), found("destinations"))


def _ends(selectors: Selectors, cluster: ClusterView) -> Iterator[End]:
    for word in selectors.services:
        for port in _ports_of(word, cluster):
            yield from _service_ends(port, cluster)
    for word in selectors.pods:
        yield from _pod_ends(word, cluster)
    for word in selectors.whole_namespaces:
        yield from _namespace_ends(word, cluster)
    for word in selectors.workloads:
        for pod in pods_of_workload(word, cluster.store):
            yield from _ends_of_pod(pod)
    for word in selectors.labels:
        for pod in pods_of_labels(word, selectors.namespaces, cluster.store):
            yield from _ends_of_pod(pod)
    for number in selectors.node_ports:
        yield LOCAL, number, ""
        for proto in ("tcp", "udp", "sctp"):
            for port in cluster.store.by_node_port.all((number, proto)):
                yield from _behind(port, cluster)
    for number in selectors.host_ports:
        yield LOCAL, number, ""
        yield from _host_ends(number, cluster)


def _service_ends(port: ServicePort, cluster: ClusterView) -> Iterator[End]:
    for address in (*port.cluster_ips, *port.external_ips, *port.balancer_ips):
        yield address, port.port, port.protocol
    if port.node_port:
        yield LOCAL, port.node_port, port.protocol
    yield from _behind(port, cluster)


def _behind(port: ServicePort, cluster: ClusterView) -> Iterator[End]:
    for end in cluster.store.endpoints.all((port.label, port.protocol)):
        yield end.address, end.port, port.protocol


def _addresses(word: str, cluster: ClusterView) -> list[str]:
    """Returns a pod's addresses: from the API's pods, from endpoints (pods of other nodes), and from libcni's cache."""
    namespace, name = _name(word)
    pods = cluster.store.pods.all((namespace, name))
    found = [a for pod in pods for a in pod.addresses if not pod.host_network]
    if not pods:
        found = [e.address for e in cluster.store.endpoints.values() if e.pod == (namespace, name)]
    found += cluster.sandboxes.addresses(namespace, name)
    return list(dict.fromkeys(found))


def _pod_ends(word: str, cluster: ClusterView) -> Iterator[End]:
    for address in _addresses(word, cluster):
        yield address, 0, ""
    for pod in cluster.store.pods.all(_name(word)):
        if pod.host_network:
            yield from _ends_of_pod(pod)


def _ends_of_pod(pod: Pod) -> Iterator[End]:
    """Yields the addresses of a pod; of a pod in the host's network, its ports."""
    if pod.host_network:
        yield from ((LOCAL, port, "") for port in pod.ports)
    else:
        yield from ((address, 0, "") for address in pod.addresses)


def _namespace_ends(namespace: str, cluster: ClusterView) -> Iterator[End]:
    """Yields the addresses of all Services and pods of a namespace; of pods on other nodes, those behind Services."""
    store = cluster.store
    for port in store.services.values():
        if port.namespace == namespace:
            yield from _service_ends(port, cluster)
    for pod in store.pods.values():
        if pod.namespace == namespace:
            yield from _ends_of_pod(pod)


def _host_ends(number: int, cluster: ClusterView) -> Iterator[End]:
    """Yields the targets of a hostPort."""
    for proto in ("tcp", "udp", "sctp"):
        for sandbox in cluster.sandboxes.host_port(number, proto):
            mapped = (h for h in sandbox.host_ports if (h.port, h.protocol) == (number, proto))
            yield from ((a, h.container_port, proto) for h in mapped for a in sandbox.addresses)
        for pod in cluster.store.by_host_port.all((number, proto)):
            if pod.node == cluster.store.node:
                mapped = (h for h in pod.host_ports if (h.port, h.protocol) == (number, proto))
                yield from ((a, h.container_port, proto) for h in mapped for a in pod.addresses)
