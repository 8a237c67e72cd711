# SPDX-License-Identifier: Apache-2.0
"""The nodes of a run: which addresses are theirs, from when to when all that they saw has come, and when they lost something.

Times are those of the reference clock, ns.
"""

from __future__ import annotations

from typing import NamedTuple

from tracer.joining.loss_periods import LossPeriods
from tracer.kube.store import ObjectStore
from tracer.model.kube import Endpoint, ServicePort

END_OF_TIME = 1 << 62
LONGEST_OPEN_NS = 12_000_000_000
"""Longest time from a packet's first event until its node sends it, ns: it waits up to 10 s for rules."""
NOT_TRACED = "the node was not traced then"
NOT_SENT = "the node has not sent all that it saw then"
LOST_SOMETHING = "the node lost events or packets then"


class AddressOwner(NamedTuple):
    """What has an address.

    Attributes:
        node: Name of the node that packets to the address have to come to.
        text: What it is: "node node-b", "pod shop/cart-b".
    """

    node: str
    text: str

    @property
    def is_pod(self) -> bool:
        """Whether it is a pod, and not the node itself."""
        return self.text.startswith("pod ")


class TracedNodes:
    """The nodes of a run.

    Args:
        store: The API's objects.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._since: dict[str, int] = {}
        self._reached: dict[str, int] = {}
        self._until: dict[str, int] = {}
        self._ended: set[str] = set()
        self._losses = LossPeriods()

    def begin(self, node: str, time: int) -> None:
        """The probes of a node are on since this time, or longer."""
        self._since.setdefault(node, time)

    def advance(self, node: str, time: int) -> None:
        """A node has ended a batch: it has sent what it explained until then. What counts is the batch before it."""
        if (before := self._reached.get(node)) is not None:
            self._until[node] = max(self._until.get(node, before), before)
        self._reached[node] = time

    def end(self, node: str, is_whole: bool) -> None:
        """A node has sent its summary. is_whole: it has explained all packets that it saw."""
        reached = self._reached.get(node)
        if is_whole and reached is not None:
            self._until[node] = max(self._until.get(node, reached), reached)
        elif not is_whole:
            self._losses.add(node, self._until.get(node, 0) - LONGEST_OPEN_NS, END_OF_TIME)

    def close(self, node: str) -> None:
        """A node sends nothing any more."""
        self._ended.add(node)

    def has_ended(self, node: str) -> bool:
        """Whether a node sends nothing any more."""
        return node in self._ended

    def note_loss(self, node: str, since: int, until: int) -> None:
        """A node has lost events or packets between two times."""
        self._losses.add(node, since, until)

    def forget_losses(self, until: int) -> None:
        """Forgets losses from before a time."""
        self._losses.forget(until)

    def is_traced(self, node: str) -> bool:
        """Whether the probes of a node have been on."""
        return node in self._since

    def gap(self, node: str, since: int, until: int, sent_until: int = 0) -> str:
        """Why a packet that came to a node between two times may not have been shown, a clause; "" = each one was shown.

        sent_until: The node must have sent what it explained until then, if that is later than `until`.
        """
        if self._since.get(node, END_OF_TIME) > since:
            return NOT_TRACED
        if self._until.get(node, 0) < max(until, sent_until):
            return NOT_SENT
        return LOST_SOMETHING if self._losses.concerns(node, since, until) else ""

    def owner(self, address: str) -> AddressOwner | None:
        """What has an address; None = nothing that is known, or more than one object."""
        nodes, pod = self._store.by_node_ip.all(address), self._store.pod_at(address)
        if nodes:
            return AddressOwner(nodes[0].name, f"node {nodes[0].name}") if len(nodes) == 1 and not pod else None
        return AddressOwner(pod[2], f"pod {pod[0]}/{pod[1]}") if pod and pod[2] else None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the traced nodes."""
        return tuple(self._since)

    def node_port(self, port: int) -> ServicePort | None:
        """The only Service port that has a NodePort of TCP; None = there is none, or more than one."""
        return self._store.by_node_port.one((port, "tcp"))

    def service_at(self, address: str, port: int, protocol: str) -> tuple[ServicePort, str] | None:
        """The only Service port at an address, and the kind of the address: "cluster IP", "external IP", "load balancer IP",
        "NodePort"; None = there is none, or more than one. protocol: "tcp".
        """
        if self._store.by_address.all((address, port, protocol)):
            return self._store.by_address.one((address, port, protocol))
        service = self._store.by_node_port.one((port, protocol)) if self._store.by_node_ip.all(address) else None
        return (service, "NodePort") if service else None

    def endpoints(self, service: ServicePort) -> tuple[Endpoint, ...]:
        """The endpoints that a Service port had when the run began; () = none, or they were not read."""
        return self._store.endpoints.all((service.label, service.protocol))

    def network_owner(self, address: str) -> str:
        """The node with the pod network that contains an address; "" = none that is known."""
        found = self._store.node_of_network(address)
        return found.name if found else ""

    def addresses(self, node: str) -> tuple[str, ...]:
        """The addresses of a node."""
        return tuple(address for each in self._store.nodes.all(node) for address in each.addresses)
