# SPDX-License-Identifier: Apache-2.0
"""Stores Kubernetes objects in dictionaries: every query of a packet is one look-up.

A lock lets one thread at a time change the store. Any thread may read at any time: an index maps a key to a tuple, which is
replaced, never changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from tracer.kube import objects, policy_objects
from tracer.kube.indexes import Entry, Name, ObjectIndexes
from tracer.kube.objects import Object, PortName
from tracer.model.kube import Endpoint, KubeNode, ServicePort, ServiceTimes
from tracer.util.evictions import evictions
from tracer.util.multidict import MultiIndex, no_cycles

MOST_ENTRIES = 1 << 21
"""Largest number of index entries and endpoints: four for each pod behind a Service, of a cluster of 150,000 pods three times.
With more the store is emptied and stays so: with a part of the objects something wrong could be stated about the others."""

Change = tuple[str, str, list[Object]]
"""A change: the method's name, the kind ("" for load), and the objects."""


class ObjectStore(ObjectIndexes):
    """The indexes, updated with the changes of the API.

    Attributes:
        node: The name of this node; "" = not known.
        version: Number of changes so far.
        unreadable: Number of ignored objects with invalid types.
        is_followed: The objects were listed by the API, not read from a file, of which the age is not known.
        is_full: There were more than MOST_ENTRIES, so the store is empty, and ignores all changes.
    """

    def __init__(self, node: str = "") -> None:
        super().__init__()
        self._node = node
        self._entries: dict[tuple[str, Name], list[Entry]] = {}
        self._service: dict[Name, tuple[ServicePort, ...]] = {}
        self._behind: dict[Name, dict[tuple[str, Name], list[tuple[PortName, Endpoint]]]] = {}
        self._home: dict[tuple[str, Name], Name] = {}
        self._service_times: dict[Name, ServiceTimes] = {}
        self._slice_changes: dict[tuple[str, Name], int] = {}
        self._touched: set[Name] = set()
        self._lock = threading.RLock()
        self._callbacks: list[Callable[[], None]] = []
        self._keepers: list[Callable[[Change], None]] = []
        self._coming: list[Callable[[Change], None]] = []
        self.version, self._differs = 0, False
        self.unreadable, self.is_full, self.is_followed = 0, False, False
        self._entry_count = self._end_count = 0

    def __len__(self) -> int:
        return len(self._service) + len(self._home) + len(self.pods) + len(self.nodes) + len(self.policies)

    @property
    def node(self) -> str:
        return self._node

    @node.setter
    def node(self, name: str) -> None:
        self._announce("named", name, [])
        with self._lock:
            self._node = name
            self._keep("named", name, ())

    def still(self) -> AbstractContextManager[object]:
        """Returns a context manager; within its block only its own thread can change the store."""
        return self._lock

    def on_apply(self, keeper: Callable[[Change], None]) -> None:
        """Calls keeper for each change of this store, in order. Repeating the changes gives the same store."""
        self._keepers.append(keeper)

    def on_coming(self, callback: Callable[[Change], None]) -> None:
        """Calls a function for each change before it is applied here. Applying may have to wait for `still`."""
        self._coming.append(callback)

    def _announce(self, what: str, kind: str, bodies: list[Object]) -> None:
        for callback in self._coming:
            callback((what, kind, bodies))

    def _keep(self, what: str, kind: str, bodies: Iterable[Object]) -> Iterable[Object]:
        if not self._keepers:
            return bodies
        kept = list(bodies)
        for keeper in self._keepers:
            keeper((what, kind, kept))
        return kept

    def _readable(self, kind: str, bodies: Iterable[Any]) -> list[Object]:
        """Returns the valid objects, and counts the others."""
        given = list(bodies)
        found = [body for body in given if objects.is_readable(kind, body)]
        self.unreadable += len(given) - len(found)
        return found

    def on_change(self, callback: Callable[[], None]) -> None:
        """Calls a function after each change of the indexes, in the thread that made the change."""
        self._callbacks.append(callback)

    def load(self, bodies: Iterable[Object]) -> None:
        """Adds objects of all kinds, as in a List."""
        bodies = list(bodies)
        self._announce("load", "", bodies)
        with self._lock, no_cycles():
            if self.is_full:
                return
            known = [b for b in objects.flatten(bodies) if b.get("kind") in objects.KINDS and not objects.is_other_policy(b)]
            for body in self._keep("load", "", self._readable("", known)):
                self._apply(str(body["kind"]), body)
            self._rebuild()
        self._changed()

    def apply(self, kind: str, body: Object) -> None:
        """Adds or updates an object."""
        self._announce("apply", kind, [body])
        with self._lock:
            if self.is_full:
                return
            for one in self._keep("apply", kind, self._readable(kind, (body,))):
                self._apply(kind, one)
            self._rebuild()
        self._changed()

    def delete(self, kind: str, body: Object) -> None:
        """Removes an object."""
        if not objects.has_name(body):
            self.unreadable += 1
            return
        self._announce("delete", kind, [body])
        with self._lock:
            if self.is_full:
                return
            self._keep("delete", kind, (body,))
            self._forget(kind, objects.key(body))
            self._rebuild()
        self._changed()

    def replace(self, kind: str, bodies: Iterable[Object]) -> None:
        """Replaces all objects of one kind by a new list."""
        bodies = list(bodies)
        self._announce("replace", kind, bodies)
        with self._lock, no_cycles():
            if self.is_full:
                return
            seen, self.is_followed = set(), True
            for body in self._keep("replace", kind, self._readable(kind, bodies)):
                seen.add(objects.key(body))
                self._apply(kind, body)
            for name in [n for k, n in [*self._entries, *self._home] if k == kind and n not in seen]:
                self._forget(kind, name)
            self._rebuild()
        self._changed()

    def _rebuild(self) -> None:
        while self._touched and not self.is_full:
            self._build(self._touched.pop())

    def _changed(self) -> None:
        """Calls the callbacks if an index entry has changed. A node's heartbeat, for example, changes none."""
        if not self._differs:
            return
        self._differs = False
        self.version += 1
        for callback in self._callbacks:
            callback()

    def _apply(self, kind: str, body: Object) -> None:
        name = objects.key(body)
        if self.is_full:
            return
        if kind == "Service":
            self._service[name] = objects.service_ports(body)
            self._service_times[name] = ServiceTimes(*objects.times(body), objects.is_for_kube_proxy(body))
            self._touched.add(name)
        elif kind in ("EndpointSlice", "Endpoints"):
            self._behind_changed(kind, name, body)
        elif kind == "Pod":
            pod = objects.pod(body)
            self._set(kind, name, self.pod_entries(pod) if pod else [])
        elif kind == "Node":
            self._set(kind, name, self.node_entries(objects.node(body)))
        elif kind == "NetworkPolicy":
            self._set(kind, name, self.policy_entries(policy_objects.network_policy(body)))
        elif kind == "Namespace":
            self._set(kind, name, self.namespace_entries(policy_objects.namespace(body)))

    def _behind_changed(self, kind: str, name: Name, body: Object) -> None:
        """Assigns a slice to its Service, and removes it from its previous one."""
        service, found = (objects.slice_endpoints if kind == "EndpointSlice" else objects.endpoints_endpoints)(body)
        if self._home.get((kind, name)) != service:
            self._take_from_service(kind, name)
        self._home[kind, name] = service
        slices = self._behind.setdefault(service, {})
        self._end_count += len(found) - len(slices.get((kind, name), ()))
        slices[kind, name] = found
        self._slice_changes[kind, name] = objects.times(body)[1]
        self._touched.add(service)
        self._limit()

    def _take_from_service(self, kind: str, name: Name) -> None:
        """Removes a slice from its Service."""
        service = self._home.pop((kind, name), None)
        if service is not None:
            slices = self._behind[service]
            self._end_count -= len(slices.pop((kind, name)))
            self._slice_changes.pop((kind, name), None)
            if not slices:
                del self._behind[service]
            self._touched.add(service)

    def _limit(self) -> None:
        """Empties the store for good when there is too much in it."""
        if self._entry_count + self._end_count + len(self) <= MOST_ENTRIES or self.is_full:
            return
        self.is_full = self._differs = True
        evictions.add("objects of Kubernetes", len(self))
        for held in vars(self).values():
            if isinstance(held, (dict, set, MultiIndex)):
                held.clear()
        self._entry_count = self._end_count = 0

    def _forget(self, kind: str, name: Name) -> None:
        if kind == "Service":
            self._service.pop(name, None)
            self._service_times.pop(name, None)
            self._touched.add(name)
        elif (kind, name) in self._home:
            self._take_from_service(kind, name)
        else:
            self._set(kind, name, [])

    def _set(self, kind: str, name: Name, entries: list[Entry]) -> None:
        """Replaces the index entries of an object."""
        had = self._entries.get((kind, name), [])
        if had == entries:
            return
        self._differs = True
        self._entry_count += len(entries) - len(had)
        self._entries.pop((kind, name), None)
        for index, key, value in had:
            index.remove(key, value)
        for index, key, value in entries:
            index.add(key, value)
        if entries:
            self._entries[kind, name] = entries
        self._limit()

    def _build(self, name: Name) -> None:
        """Builds the entries of one Service from the Service and its endpoints."""
        ports = self._service.get(name, ())
        behind = self._behind.get(name, {})
        # A cluster with slices mirrors them in Endpoints, which are less complete.
        kinds = {"EndpointSlice"} if any(kind == "EndpointSlice" for kind, _ in behind) else {"Endpoints"}
        ends = [end for (kind, _), found in behind.items() if kind in kinds for end in found]
        entries: list[Entry] = []
        for port in ports:
            entries += self.port_entries(name, port, [e for named, e in ends if named == (port.port_name, port.protocol)])
        if ports:
            changes = [self._service_times[name].changed, *(self._slice_changes[key] for key in behind if key[0] in kinds)]
            changed = max(changes) if all(changes) else 0
            entries.append((self.times, name, replace(self._service_times[name], changed=changed)))
        self._set("Service", name, entries)

    def this_node(self) -> KubeNode | None:
        return self.nodes.one(self.node)
