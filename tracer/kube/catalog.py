# SPDX-License-Identifier: Apache-2.0
"""The data for finding owners: the objects of the API, and the node's own data."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from tracer.kube.cni_cache import CniCache
from tracer.kube.store import ObjectStore
from tracer.model.kube import Owner, ServicePort, pod_text
from tracer.model.rule import Rule, Ruleset
from tracer.node import addresses

MOST_REMEMBERED, MOST_RULESETS, MOST_WALKS = 20_000, 16, 4_000


class OwnerCache:
    """Cache of owners. It is cleared when the objects change or a ruleset is deleted. Keeps no reference to a ruleset."""

    def __init__(self) -> None:
        self._version = -1
        self._rulesets: dict[int, ref[Ruleset]] = {}
        self._owners: dict[tuple[int, Rule], Owner] = {}
        self._traces: dict[Hashable, tuple[object, object]] = {}

    def get(self, rule: Rule, ruleset: Ruleset, version: int) -> Owner | None:
        """Returns the cached owner of a rule in this ruleset, for this version of the objects; None = not cached."""
        known = self._rulesets.get(id(ruleset))
        if version != self._version or (known and known() is not ruleset):
            self._forget(version)
        return self._owners.get((id(ruleset), rule))

    def put(self, rule: Rule, ruleset: Ruleset, owner: Owner) -> None:
        if len(self._owners) >= MOST_REMEMBERED or len(self._rulesets) > MOST_RULESETS:
            self._forget(self._version)
        self._rulesets[id(ruleset)] = ref(ruleset)
        self._owners[id(ruleset), rule] = owner

    def get_trace(self, hits: object, ruleset: Ruleset, before: Hashable, version: int) -> Any:
        """Returns the cached result for a rule trace, found by the identity of its hits; None = not cached.

        before: the state before the rule trace.
        """
        found = self._traces.get((id(hits), id(ruleset), before)) if version == self._version else None
        known = self._rulesets.get(id(ruleset))
        return found[1] if found and known and known() is ruleset else None

    def put_trace(self, hits: object, ruleset: Ruleset, before: Hashable, found: object) -> None:
        if len(self._traces) >= MOST_WALKS:
            self._traces.clear()
        if len(self._rulesets) > MOST_RULESETS:
            self._forget(self._version)
        # The hits are kept, so that no other object can get their id.
        self._rulesets.setdefault(id(ruleset), ref(ruleset))
        self._traces[id(hits), id(ruleset), before] = hits, found

    def _forget(self, version: int) -> None:
        self._owners.clear()
        self._traces.clear()
        self._rulesets.clear()
        self._version = version


@dataclass(frozen=True)
class ClusterView:
    """The data for finding owners.

    Attributes:
        store: The API's objects; empty without API.
        sandboxes: libcni's result cache.
        local: This node's addresses.
        ipvs: The Service addresses on kube-ipvs0.
    """

    store: ObjectStore = field(default_factory=ObjectStore)
    sandboxes: CniCache = field(default_factory=lambda: CniCache(()))
    local: frozenset[str] = frozenset()
    ipvs: frozenset[str] = frozenset()
    cache: OwnerCache = field(default_factory=OwnerCache, compare=False, repr=False)

    @classmethod
    def of_machine(cls, sandboxes: CniCache | None = None) -> ClusterView:
        """The view of this machine before any object is known. sandboxes: the CNI cache; None = a new one."""
        own = CniCache() if sandboxes is None else sandboxes
        return cls(ObjectStore(), own, addresses.local_addresses(), addresses.ipvs_addresses())

    @property
    def version(self) -> Hashable:
        """Changes with each change of what owners are found from, except rules."""
        return id(self), self.store.version, self.store.node, self.sandboxes.version

    def has_port(self, port: int, protocol: str) -> bool:
        """Whether a Service or a pod has this port at addresses of nodes."""
        store = self.store
        return bool(
            store.by_node_port.all((port, protocol))
            or store.by_host_port.all((port, protocol))
            or self.sandboxes.has_host_port(port, protocol)
        )

    def is_local(self, address: str) -> bool:
        """Whether it is an address of this node."""
        node = self.store.this_node()
        return address in self.local or address.startswith("127.") or bool(node and address in node.addresses)

    def pod_at(self, address: str) -> tuple[str, str, str] | None:
        """Returns (namespace, name, node) of the pod at this address; None = not known, or libcni and the API disagree."""
        sandbox, by_api = self.sandboxes.at(address), self.store.pod_at(address)
        if sandbox and by_api and (sandbox.namespace, sandbox.name) != by_api[:2]:
            return None
        if sandbox:
            found = self.store.pods.one((sandbox.namespace, sandbox.name))
            return sandbox.namespace, sandbox.name, (found.node if found else "") or self.store.node
        return by_api

    def leads_to(self, address: str) -> str:
        """Returns the target of a DNAT: "pod default/web-a (node-1)", "node node-1"; "" = not known."""
        pod = self.pod_at(address)
        if pod:
            return pod_text(*pod)
        node = self.store.by_node_ip.one(address)
        return f"node {node.name}" if node else ""

    def service_at(self, address: str, port: int, protocol: str) -> tuple[ServicePort, str] | None:
        """Returns the service port at this address, and the kind of the address: "cluster IP", "NodePort 30285" ...

        A NodePort counts only at an address of a node.
        """
        found = self.store.by_address.one((address, port, protocol))
        if found:
            return found
        by_node = self.store.by_node_port.one((port, protocol))
        if (
            by_node
            and not self.store.by_service_ip.all(address)
            and (self.is_local(address) or self.store.by_node_ip.all(address))
        ):
            return by_node, f"NodePort {port}"
        return None
