# SPDX-License-Identifier: Apache-2.0
"""What a finding about several nodes can use: the traced nodes, what came to each of them, and what their filter selects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tracer.cluster_findings.endpoint_history import EndpointReader, NoEndpointReader
from tracer.cluster_findings.seen_packets import SeenPackets
from tracer.joining.traced_nodes import AddressOwner, TracedNodes
from tracer.joining.wire_headers import WireHeader
from tracer.model.endpoints import Endpoints
from tracer.model.joined_packet import JoinedPacket, NodeView
from tracer.model.packet import Packet
from tracer.util.lru_dict import LruCounter, LruDict

WAYS_KEPT = 8192
"""Most ways between two nodes of which it is known that packets on them are seen."""
ENDS_KEPT = 1 << 16
"""Most ends of packets for which it is known when a node last showed them."""

LONGEST_SEGMENT = 1500
"""Length of a TCP packet up to which it is certain to be one segment, bytes: the network card may divide a longer one, so its
length says nothing about the wire."""
ANY_PORT = -1
NODE_PORTS_KEPT = 8192
"""Most pairs of a node and a NodePort of which SYNs are counted."""
SERVICES_KEPT = 8192
"""Most pairs of a node and a Service port of which it is known what the node's rules did."""
FORWARDED_KEPT = 1 << 16
"""Most requests that one node translated and another one got, of which the answer may come."""
FLOWS_KEPT = 8192
"""Most flows with a packet that was too long, and most senders of which that was reported."""
CHOSEN_KEPT = 16
"""Most endpoints of a Service that are kept for each node, the newest ones."""
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


class NodePair(NamedTuple):
    """Two nodes and what packets from one to the other were for.

    Attributes:
        family: "IPv4" or "IPv6".
        node: The node that packets left, or where they were dropped.
        target: The node that they were for.
        is_pod: They were for a pod of that node.
    """

    family: str
    node: str
    target: str
    is_pod: bool


class CarriedLengths(NamedTuple):
    """Packets of two nodes that came for certain.

    Attributes:
        packets: Their number.
        longest: Length of the longest one, bytes.
        last: When the last one left, ns, of the reference clock.
        last_but_one: When the one before it left, ns.
    """

    packets: int = 0
    longest: int = 0
    last: int = 0
    last_but_one: int = 0


class LostLengths(NamedTuple):
    """Packets of two nodes that were lost for certain.

    Attributes:
        packets: Their number.
        shortest: Length of the shortest one, bytes.
        longest: Length of the longest one, bytes.
        since: When the first one left, ns, of the reference clock.
        iface: The interface by which the last one left.
        example: The first one.
    """

    packets: int
    shortest: int
    longest: int
    since: int
    iface: str
    example: Packet


class ServiceKey(NamedTuple):
    """A Service port in one family of addresses. label: as ServicePort.label."""

    label: str
    protocol: str
    family: str


class EndpointUse(NamedTuple):
    """The last time when rules chose an endpoint, ns, of the reference clock."""

    address: str
    port: int
    time: int


class ServiceUse(NamedTuple):
    """What the rules of one node did with new connections to a Service port. Times: ns, of the reference clock.

    Attributes:
        since: First translation after the last packet without one; 0 = none.
        until: Last translation after it.
        chosen: The endpoints that were chosen last, the newest first.
        bare_since: First packet without a translation after the last translation; 0 = none.
        bare_until: Last packet without a translation after it.
        bare: Number of these packets.
        is_sure: The NAT rules of the node ran for each of these packets, or a rule of the Service refused it.
    """

    since: int = 0
    until: int = 0
    chosen: tuple[EndpointUse, ...] = ()
    bare_since: int = 0
    bare_until: int = 0
    bare: int = 0
    is_sure: bool = True


class ForwardedRequest(NamedTuple):
    """A request that one node translated, and that came to another node with the address of its client.

    Attributes:
        node: The node that translated it.
        target: The other node.
        iface: The interface by which it came to the other node.
        from_translator: The client is on the node that translated it, in a network namespace of its own.
        has_returned: Something that can be an answer of its connection has come to the node that translated it.
    """

    node: str
    target: str
    iface: str
    from_translator: bool
    has_returned: bool = False


class AnswerWay(NamedTuple):
    """The way of answers: the node that they left, the interface, and the node that translated the requests."""

    node: str
    iface: str
    translator: str


class TooLong(NamedTuple):
    """Equal packets that a node dropped because they were too long: the time of the first one, ns, and their number."""

    since: int
    packets: int


class Suspicion(NamedTuple):
    """A packet that may show a finding. It is looked at again when all has come that could contradict.

    Attributes:
        view: The packet at a node.
        time: When the node saw it, ns, of the reference clock.
        error: Largest error of the time, ns.
        watched: Nodes that must have shown all that came to them since then. Without that nothing is said.
        seen_at: Other nodes to which the packet came for certain.
    """

    view: NodeView
    time: int
    error: int
    watched: tuple[str, ...] = ()
    seen_at: tuple[str, ...] = ()


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
    def nodes(self) -> tuple[str, str]:
        """The nodes that must have shown what came of it."""
        return self.owner.node, self.node

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
        endpoints: The endpoints of Services, read again.
        services: What the rules of nodes did with new connections to Service ports.
        turned_away: Packets that a node threw away for lack of a local endpoint, by node and Service port.
        forwarded: Requests that one node translated and another one got, by protocol and the addresses with which the answer
            leaves that node.
        returned: Ways by which answers came to the node that had translated the requests.
        missed: Number of answers that never came to that node, by their way.
        carried: Packets that came from one node to another for certain.
        lost: Packets that were lost between two nodes for certain.
        too_long: Packets that a node dropped because they were too long, by node, protocol, addresses and sequence number.
        reports: Number of ICMP messages "too long" to a sender, by its address.
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
    endpoints: EndpointReader = field(default_factory=NoEndpointReader)
    services: LruDict[tuple[str, ServiceKey], ServiceUse] = field(
        default_factory=lambda: LruDict(SERVICES_KEPT, "Services of nodes")
    )
    turned_away: LruCounter[tuple[str, ServiceKey]] = field(
        default_factory=lambda: LruCounter(SERVICES_KEPT, "Services without a local endpoint")
    )
    forwarded: LruDict[tuple[str, Endpoints], ForwardedRequest] = field(
        default_factory=lambda: LruDict(FORWARDED_KEPT, "requests through two nodes")
    )
    returned: LruDict[AnswerWay, int] = field(default_factory=lambda: LruDict(WAYS_KEPT, "ways of answers"))
    missed: LruCounter[AnswerWay] = field(default_factory=lambda: LruCounter(WAYS_KEPT, "ways of missed answers"))
    carried: LruDict[NodePair, CarriedLengths] = field(default_factory=lambda: LruDict(WAYS_KEPT, "lengths between nodes"))
    lost: LruDict[NodePair, LostLengths] = field(default_factory=lambda: LruDict(WAYS_KEPT, "lost lengths between nodes"))
    too_long: LruDict[tuple[str, str, Endpoints, int], TooLong] = field(
        default_factory=lambda: LruDict(FLOWS_KEPT, "flows with packets that are too long")
    )
    reports: LruCounter[str] = field(default_factory=lambda: LruCounter(FLOWS_KEPT, "senders of packets that are too long"))

    def note(self, joined: JoinedPacket) -> None:
        """Notes what a packet shows of nodes and ways."""
        for at, view in enumerate(joined.views):
            packet, node = view.packet, view.node
            ends, time = packet.endpoints, view.time - view.error
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

    def note_way(self, way: NodeWay, length: int, time: int) -> None:
        """A packet of this length took a way for certain. time: when it left, ns, of the reference clock."""
        before = self.ways.get(way, WayUse())
        self.ways[way] = WayUse(before.packets + 1, max(before.longest, length))
        pair = NodePair(way.family, way.node, way.target, way.is_pod)
        came = self.carried.get(pair, CarriedLengths())
        last, last_but_one = max(came.last, time), max(came.last_but_one, min(came.last, time))
        self.carried[pair] = CarriedLengths(came.packets + 1, max(came.longest, length), last, last_but_one)

    def note_lost(self, departure: UnansweredDeparture) -> None:
        """A packet was lost between two nodes for certain."""
        way, packet = departure.way, departure.packet
        if packet.protocol == "TCP" and packet.length > LONGEST_SEGMENT:
            return
        pair, length = NodePair(way.family, way.node, way.target, way.is_pod), packet.length
        before = self.lost.get(pair, LostLengths(0, length, length, departure.time, way.iface, packet))
        self.lost[pair] = before._replace(
            packets=before.packets + 1,
            shortest=min(before.shortest, length),
            longest=max(before.longest, length),
            since=min(before.since, departure.time),
            iface=way.iface,
        )

    def note_translation(self, node: str, key: ServiceKey, address: str, port: int, time: int) -> None:
        """The rules of a node chose an endpoint of a Service for a new connection."""
        use = self.services.get((node, key), ServiceUse())
        older = tuple(each for each in use.chosen if (each.address, each.port) != (address, port))
        chosen = (EndpointUse(address, port, time), *older)[:CHOSEN_KEPT]
        self.services[node, key] = ServiceUse(use.since or time, max(use.until, time), chosen)

    def note_bare(self, node: str, key: ServiceKey, time: int, is_sure: bool) -> bool:
        """A node let a new connection to a Service pass without translating it, or refused it. Returns whether it counts.

        is_sure: It is certain that the node's rules decided. Others may be the first packet of an older connection again: they
            count only while there are none that are sure.
        """
        use = self.services.get((node, key), ServiceUse())
        if use.bare and use.is_sure and not is_sure:
            return False
        if use.bare and is_sure and not use.is_sure:
            use = ServiceUse(chosen=use.chosen)
        self.services[node, key] = ServiceUse(
            chosen=use.chosen,
            bare_since=use.bare_since or time,
            bare_until=max(use.bare_until, time),
            bare=use.bare + 1,
            is_sure=is_sure,
        )
        return True

    def note_turned_away(self, node: str, key: ServiceKey) -> int:
        """A node threw a packet away for lack of a local endpoint. Returns the number of all so far."""
        count = self.turned_away[node, key] + 1
        self.turned_away[node, key] = count
        return count
