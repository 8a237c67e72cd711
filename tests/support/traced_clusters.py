# SPDX-License-Identifier: Apache-2.0
"""A run on three nodes without agents: views are joined, and what they show together is found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.node_views import EPOCH, POD_A, POD_B, SECOND
from tracer.cluster.filter_coverage import FilterCoverage
from tracer.cluster_findings import SETTLED_NS, ClusterFindings
from tracer.cluster_findings.cluster_context import ClusterContext
from tracer.joining.packet_joiner import PacketJoiner
from tracer.joining.traced_nodes import TracedNodes
from tracer.kube.catalog import ClusterView
from tracer.model.finding import Finding
from tracer.model.joined_packet import NodeView

NODES = {"a": "192.168.60.11", "b": "192.168.60.12", "c": "192.168.60.13"}
PODS = {
    "shop/shop-a": (POD_A, "a"),
    "shop/cart-b": (POD_B, "b"),
    "shop/shop-b": ("10.244.2.9", "b"),
    "shop/cart-c": ("10.244.3.9", "c"),
}
BEGAN = -100 * SECOND
"""When the probes came on, ns after EPOCH."""


def cluster_objects() -> list[dict[str, Any]]:
    """Nodes, pods, and a Service with both pods `cart` behind it."""
    nodes = [
        {"kind": "Node", "metadata": {"name": name}, "status": {"addresses": [{"type": "InternalIP", "address": address}]}}
        for name, address in NODES.items()
    ]
    pods = []
    for full, (address, node) in PODS.items():
        namespace, name = full.split("/")
        meta = {"namespace": namespace, "name": name}
        pods.append(
            {"kind": "Pod", "metadata": meta, "spec": {"nodeName": node}, "status": {"podIP": address, "phase": "Running"}}
        )
    ports = [{"port": 80, "targetPort": 8080, "nodePort": 30080, "protocol": "TCP"}]
    meta = {"namespace": "shop", "name": "cart"}
    service = {"kind": "Service", "metadata": meta, "spec": {"clusterIP": "172.30.0.10", "type": "NodePort", "ports": ports}}
    ends = [
        {"addresses": [address], "nodeName": node, "targetRef": {"kind": "Pod", "namespace": "shop", "name": full[5:]}}
        for full, (address, node) in PODS.items()
        if "cart" in full
    ]
    labels = {"kubernetes.io/service-name": "cart"}
    beside = {
        "kind": "EndpointSlice",
        "metadata": {"namespace": "shop", "name": "cart-1", "labels": labels},
        "addressType": "IPv4",
        "endpoints": ends,
        "ports": [{"port": 8080, "protocol": "TCP", "name": ""}],
    }
    return [*nodes, *pods, service, beside]


def cluster_view() -> ClusterView:
    view = ClusterView()
    view.store.load(cluster_objects())
    return view


class TracedCluster:
    """A run. options: those of the command line; nodes: the traced ones.

    Attributes:
        findings: What was found.
        nodes: The nodes, as the run knows them.
    """

    def __init__(self, nodes: str = "ab", **options: Any) -> None:
        view = cluster_view()
        coverage = FilterCoverage.of(options, view)
        self.nodes = TracedNodes(view.store)
        self.findings = ClusterFindings(ClusterContext(self.nodes, coverage, coverage.is_by_name))
        self._names = nodes
        self._joiner = PacketJoiner()
        for node in nodes:
            self.nodes.begin(node, EPOCH + BEGAN)

    def note_loss(self, node: str, since: int, until: int) -> None:
        """A node has lost events between two times, ns after EPOCH."""
        self.nodes.note_loss(node, EPOCH + since, EPOCH + until)
        self._joiner.note_loss(node, EPOCH + since, EPOCH + until)

    def show(self, *views: NodeView) -> None:
        """Nodes have sent these views."""
        for each in views:
            self._joiner.feed(each)

    def reach(self, time: int, nodes: Sequence[str] = "") -> list[tuple[str, Finding]]:
        """Nodes, usually all, have sent all that they saw until a time, ns after EPOCH."""
        for node in nodes or self._names:
            self.nodes.advance(node, EPOCH + time)
            self.nodes.advance(node, EPOCH + time)
        for joined in self._joiner.take(EPOCH + time):
            self.findings.look(joined)
        return self.findings.take(EPOCH + time)

    def settle(self, *views: NodeView) -> list[Finding]:
        """Shows views, and lets the time pass after which nothing more comes. Returns all findings."""
        self.show(*views)
        last = max((view.packet.time + (view.offset or 0) for view in views), default=EPOCH) - EPOCH
        self.reach(last + SETTLED_NS - SECOND)
        self.reach(last + SETTLED_NS + SECOND)
        return self.findings.all

    def end(self, is_whole: bool = True) -> list[Finding]:
        """All nodes have sent their summaries. Returns all findings."""
        for node in self._names:
            self.nodes.end(node, is_whole)
        for joined in self._joiner.close():
            self.findings.look(joined)
        self.findings.close()
        return self.findings.all
