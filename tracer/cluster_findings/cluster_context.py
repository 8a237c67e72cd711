# SPDX-License-Identifier: Apache-2.0
"""What a finding about several nodes can use: the traced nodes, what came to each of them, and what their filter selects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tracer.cluster_findings.seen_packets import SeenPackets
from tracer.joining.traced_nodes import AddressOwner, TracedNodes
from tracer.joining.wire_headers import WireHeader
from tracer.model.endpoints import Endpoints
from tracer.model.joined_packet import JoinedPacket
from tracer.model.packet import Packet
from tracer.util.lru_dict import LruDict

WAYS_KEPT = 8192
"""Most ways between two nodes of which it is known that packets on them are seen."""
ENDS_KEPT = 1 << 16
"""Most ends of packets for which it is known when a node last showed them."""

ANY_PORT = -1
NODE_PORTS_KEPT = 8192
"""Most pairs of a node and a NodePort of which SYNs are counted."""
Covers = Callable[[str, Packet, Endpoints], bool]
"""Whether the filter of a node selects a packet for certain that comes there with these addresses."""


class NodeWay(NamedTuple):
    """A way between two nodes. Packets to pods may take another one inside of a node than those to the node itself.

    Attributes:
        family: "IPv4" or "IPv6".
        node: The node that packets left.
        iface: The interface by which they left.
        target: The node that they came to.
        is_pod: They were for a pod of that node.
    """

    family: str
    node: str
    iface: str
    target: str
    is_pod: bool


class WayUse(NamedTuple):
    """Packets that took a way for certain: their number, and the length of the longest one, bytes."""

    packets: int = 0
    longest: int = 0


class ShownEnd(NamedTuple):
    """An end of packets that a node showed. port: ANY_PORT = any; is_source: they came from it."""

    node: str
    address: str
    port: int
    is_source: bool


class NodePortUse(NamedTuple):
    """SYNs to a NodePort on one node: how many were answered, and how many were thrown away."""

    answered: int = 0
    failed: int = 0


class UnansweredDeparture(NamedTuple):
    """A packet that left a node for another traced one, and was joined with no packet there.

    Attributes:
        node: The node that it left.
        packet: The packet.
        header: With which it left.
        owner: What has the destination's address.
        time: When it left, ns, of the reference clock.
        error: Largest error of the time, ns.
    """

    node: str
    packet: Packet
    header: WireHeader
    owner: AddressOwner
    time: int
    error: int

    @property
    def way(self) -> NodeWay:
        """The way that it took."""
        return NodeWay(self.packet.family, self.node, self.header.iface, self.owner.node, self.owner.is_pod)


class Undecided(NamedTuple):
    """It cannot be said whether a packet shows a finding. why: a clause."""

    why: str


@dataclass
class ClusterContext:
    """What a finding can use beside the packet.

    Attributes:
        nodes: The traced nodes.
        covers: What the filter of the run selects on a node.
        is_selected_by_name: The filter follows objects of Kubernetes, so what it selects can change.
        seen: What came to the nodes without a certain departure.
        ways: Ways between nodes that packets took for certain.
        ends: When a node last showed an end of packets, ns, of the reference clock.
        node_ports: SYNs to NodePorts, by node and port.
    """

    nodes: TracedNodes
    covers: Covers
    is_selected_by_name: bool = False
    seen: SeenPackets = field(default_factory=SeenPackets)
    ways: LruDict[NodeWay, WayUse] = field(default_factory=lambda: LruDict(WAYS_KEPT, "ways between nodes"))
    ends: LruDict[ShownEnd, int] = field(default_factory=lambda: LruDict(ENDS_KEPT, "ends that nodes showed"))
    node_ports: LruDict[tuple[str, int], NodePortUse] = field(
        default_factory=lambda: LruDict(NODE_PORTS_KEPT, "NodePorts of nodes")
    )

    def note(self, joined: JoinedPacket) -> None:
        """Notes what a packet shows of nodes and ways."""
        for at, view in enumerate(joined.views):
            packet, node = view.packet, view.node
            ends, time = packet.endpoints, packet.time + (view.offset or 0) - view.error
            for address, port, is_source in ((ends.src, ends.sport, True), (ends.dst, ends.dport, False)):
                for end in (ShownEnd(node, address, port, is_source), ShownEnd(node, address, ANY_PORT, is_source)):
                    self.ends[end] = max(time, self.ends.get(end, time))
            source = self.nodes.owner(ends.src)
            self.seen.add(joined, at, is_own=source is not None and source.node == node)

    def last_shown(self, node: str, address: str, port: int = ANY_PORT) -> int:
        """When a node last showed a packet from or to an end, ns; 0 = never."""
        return max(self.ends.get(ShownEnd(node, address, port, is_source), 0) for is_source in (True, False))

    def last_source(self, node: str, address: str, port: int) -> int:
        """When a node last showed a packet from an end, ns; 0 = never."""
        return self.ends.get(ShownEnd(node, address, port, True), 0)

    def node_port_use(self, node: str, port: int) -> NodePortUse:
        """The SYNs to a NodePort on a node so far."""
        return self.node_ports.get((node, port), NodePortUse())

    def note_node_port(self, node: str, port: int, is_answered: bool) -> NodePortUse:
        """A SYN to a NodePort was answered on a node, or thrown away there. Returns all so far."""
        before = self.node_port_use(node, port)
        use = NodePortUse(before.answered + is_answered, before.failed + (not is_answered))
        self.node_ports[node, port] = use
        return use

    def note_way(self, way: NodeWay, length: int) -> None:
        """A packet of this length took a way for certain."""
        before = self.ways.get(way, WayUse())
        self.ways[way] = WayUse(before.packets + 1, max(before.longest, length))
