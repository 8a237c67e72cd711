"""What is known of Kubernetes' objects, in dictionaries: every question that a packet asks is one look-up.

One thread at a time may change it (a lock sees to that); any thread may ask at any time: an index maps a key to a tuple that
is replaced, never changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from functools import lru_cache
from ipaddress import ip_network
from typing import Any

from tracer.kube import objects
from tracer.kube.index import Index, no_cycles
from tracer.kube.model import Endpoint, Node, Pod, ServicePort
from tracer.kube.names import endpoint_hash, service_hash
from tracer.kube.objects import Object, PortName

Name = tuple[str, str]
"""namespace, name."""


Entry = tuple[Index[Any, Any], Hashable, Any]

Change = tuple[str, str, list[Object]]
"""What was done: the method's name, the kind ("" for load), and the objects it was given."""


class Store:
    """Services, endpoints, pods and nodes, found by whatever a packet or a rule shows of them.

    node: name of this node, "" while not known. by_address: (address, port, protocol) -> (service port, "cluster IP"
    / "external IP" / "load balancer IP"). by_node_port and by_health_port: (port, protocol). by_chain: the hash in
    KUBE-SVC-; by_endpoint_chain: that in KUBE-SEP-. endpoints: of a service port, by (ns/name:port, protocol).
    by_endpoint: (address, port, protocol) of an endpoint -> the service ports it stands behind.
    """

    def __init__(self, node: str = "") -> None:
        self._node = node
        self.services: Index[Name, ServicePort] = Index()
        self.by_address: Index[tuple[str, int, str], tuple[ServicePort, str]] = Index()
        self.by_service_ip: Index[str, Name] = Index()
        self.by_node_port: Index[tuple[int, str], ServicePort] = Index()
        self.by_health_port: Index[int, ServicePort] = Index()
        self.by_chain: Index[str, ServicePort] = Index()
        self.by_endpoint_chain: Index[str, tuple[ServicePort, Endpoint]] = Index()
        self.endpoints: Index[tuple[str, str], Endpoint] = Index()
        self.by_endpoint: Index[tuple[str, int, str], ServicePort] = Index()
        self.endpoint_pods: Index[str, tuple[str, str, str]] = Index()
        self.pods: Index[Name, Pod] = Index()
        self.by_pod_ip: Index[str, Pod] = Index()
        self.by_host_port: Index[tuple[int, str], Pod] = Index()
        self.nodes: Index[str, Node] = Index()
        self.by_node_ip: Index[str, Node] = Index()
        self.by_pod_cidr: Index[str, Node] = Index()
        self.pod_prefixes: Index[str, int] = Index()
        self._entries: dict[tuple[str, Name], list[Entry]] = {}
        self._service: dict[Name, tuple[ServicePort, ...]] = {}
        self._behind: dict[Name, dict[tuple[str, Name], list[tuple[PortName, Endpoint]]]] = {}
        self._home: dict[tuple[str, Name], Name] = {}
        self._touched: set[Name] = set()
        self._lock = threading.RLock()
        self._callbacks: list[Callable[[], None]] = []
        self._keepers: list[Callable[[Change], None]] = []
        self.version, self._differs = 0, False

    def __len__(self) -> int:
        return len(self._service) + len(self._home) + len(self.pods) + len(self.nodes)

    @property
    def node(self) -> str:
        return self._node

    @node.setter
    def node(self, name: str) -> None:
        with self._lock:
            self._node = name
            self._keep("named", name, ())

    def still(self) -> AbstractContextManager[object]:
        """Nothing changes here within the block, but what its own thread changes."""
        return self._lock

    def on_apply(self, keeper: Callable[[Change], None]) -> None:
        """Told of each thing that is done to this store, in order; whoever does them again has the same store."""
        self._keepers.append(keeper)

    def _keep(self, what: str, kind: str, bodies: Iterable[Object]) -> Iterable[Object]:
        if not self._keepers:
            return bodies
        kept = list(bodies)
        for keeper in self._keepers:
            keeper((what, kind, kept))
        return kept

    def on_change(self, callback: Callable[[], None]) -> None:
        """Called, in the thread that made the change, whenever something that is kept here has changed."""
        self._callbacks.append(callback)

    def load(self, bodies: Iterable[Object]) -> None:
        """Takes objects of all kinds, as a List has them."""
        with self._lock, no_cycles():
            for body in objects.flatten(self._keep("load", "", bodies)):
                if body.get("kind") in objects.KINDS:
                    self._apply(str(body["kind"]), body)
            self._rebuild()
        self._changed()

    def apply(self, kind: str, body: Object) -> None:
        """It is there, or has changed."""
        with self._lock:
            self._keep("apply", kind, (body,))
            self._apply(kind, body)
            self._rebuild()
        self._changed()

    def delete(self, kind: str, body: Object) -> None:
        """An object is gone."""
        with self._lock:
            self._keep("delete", kind, (body,))
            self._forget(kind, objects.key(body))
            self._rebuild()
        self._changed()

    def replace(self, kind: str, bodies: Iterable[Object]) -> None:
        """What a new list of one kind says: whatever it does not have is gone."""
        with self._lock, no_cycles():
            seen = set()
            for body in self._keep("replace", kind, bodies):
                seen.add(objects.key(body))
                self._apply(kind, body)
            for name in [n for k, n in [*self._entries, *self._home] if k == kind and n not in seen]:
                self._forget(kind, name)
            self._rebuild()
        self._changed()

    def _rebuild(self) -> None:
        while self._touched:
            self._build(self._touched.pop())

    def _changed(self) -> None:
        """A node's heartbeat, for one, changes nothing that is kept here."""
        if not self._differs:
            return
        self._differs = False
        self.version += 1
        for callback in self._callbacks:
            callback()

    def _apply(self, kind: str, body: Object) -> None:
        name = objects.key(body)
        if kind == "Service":
            self._service[name] = objects.service_ports(body)
            self._touched.add(name)
        elif kind in ("EndpointSlice", "Endpoints"):
            self._behind_changed(kind, name, body)
        elif kind == "Pod":
            pod = objects.pod(body)
            self._set(kind, name, self._pod_entries(pod) if pod else [])
        elif kind == "Node":
            node = objects.node(body)
            entries: list[Entry] = [(self.nodes, node.name, node)]
            entries += [(self.by_node_ip, a, node) for a in node.addresses]
            entries += [(self.by_pod_cidr, c, node) for c in node.pod_cidrs]
            entries += [(self.pod_prefixes, "", int(c.partition("/")[2] or 0)) for c in node.pod_cidrs]
            self._set(kind, name, entries)

    def _behind_changed(self, kind: str, name: Name, body: Object) -> None:
        """A slice belongs to its Service; a slice that changed hands leaves the old one."""
        service, found = (objects.slice_endpoints if kind == "EndpointSlice" else objects.endpoints_endpoints)(body)
        old = self._home.get((kind, name))
        if old and old != service:
            self._behind[old].pop((kind, name), None)
            self._touched.add(old)
        self._home[kind, name] = service
        self._behind.setdefault(service, {})[kind, name] = found
        self._touched.add(service)

    def _forget(self, kind: str, name: Name) -> None:
        if kind == "Service":
            self._service.pop(name, None)
            self._touched.add(name)
        elif (kind, name) in self._home:
            service = self._home.pop((kind, name))
            self._behind[service].pop((kind, name), None)
            self._touched.add(service)
        else:
            self._set(kind, name, [])

    def _set(self, kind: str, name: Name, entries: list[Entry]) -> None:
        """Puts these index entries in place of those that the object had."""
        had = self._entries.get((kind, name), [])
        if had == entries:
            return
        self._differs = True
        self._entries.pop((kind, name), None)
        for index, key, value in had:
            index.remove(key, value)
        for index, key, value in entries:
            index.add(key, value)
        if entries:
            self._entries[kind, name] = entries

    def _pod_entries(self, pod: Pod) -> list[Entry]:
        entries: list[Entry] = [(self.pods, (pod.namespace, pod.name), pod)]
        if not pod.host_network:
            entries += [(self.by_pod_ip, a, pod) for a in pod.addresses]
            entries += [(self.by_host_port, (h.port, h.protocol), pod) for h in pod.host_ports]
        return entries

    def _build(self, name: Name) -> None:
        """The entries of one Service, from it and from what stands behind it."""
        ports = self._service.get(name, ())
        behind = self._behind.get(name, {})
        # A cluster that has slices mirrors them in Endpoints: those would be the same again, less complete.
        kinds = {"EndpointSlice"} if any(kind == "EndpointSlice" for kind, _ in behind) else {"Endpoints"}
        ends = [end for (kind, _), found in behind.items() if kind in kinds for end in found]
        entries: list[Entry] = []
        for port in ports:
            entries += self._port_entries(name, port, [e for named, e in ends if named == (port.port_name, port.protocol)])
        self._set("Service", name, entries)

    def _port_entries(self, name: Name, port: ServicePort, ends: list[Endpoint]) -> list[Entry]:
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
        """(namespace, name, node) of the pod that has this address; None when there is none or it cannot be told.

        Pods of other nodes are known as endpoints only. A pod of the host's network has no address of its own.
        """
        pods = self.by_pod_ip.all(address)
        if pods:
            return (pods[0].namespace, pods[0].name, pods[0].node) if len(pods) == 1 else None
        return None if self.by_node_ip.all(address) else self.endpoint_pods.one(address)

    def node_of_network(self, address: str) -> Node | None:
        """The node in whose podCIDR an address lies."""
        for prefix in self.pod_prefixes.all(""):
            found = self.by_pod_cidr.one(_network(address, prefix))
            if found:
                return found
        return None

    def this_node(self) -> Node | None:
        return self.nodes.one(self.node)


@lru_cache(8192)
def _network(address: str, prefix: int) -> str:
    try:
        return str(ip_network((address, prefix), strict=False))
    except ValueError:
        return ""
