# SPDX-License-Identifier: Apache-2.0
"""A NodePort that answers on one node and not on another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.node_views import ENDS, MILLI, POD_B, view
from tests.support.traced_clusters import NODES, TracedCluster
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import Drop, DropHop, Handshake, HandshakeHop, Hop, Nat, NatHop, Socket, SocketHop
from tracer.model.joined_packet import NodeView
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Outcome

CLIENT, PORT = "192.168.56.1", 30080


def asked(node: str, time: int, way: str = "drop", port: int = PORT) -> NodeView:
    """A SYN of the client to the NodePort."""
    ends = Endpoints(CLIENT, 40000 + time % 1000, NODES[node], port)
    return view(node, time, way, ends=ends, tcp_flags="SYN", seq=time, ident=time + 1)


def answered(node: str, time: int) -> NodeView:
    """The answer of its pod, which leaves the node with the address of the node."""
    inside, outside = Endpoints(POD_B, 8080, CLIENT, 40000), Endpoints(NODES[node], PORT, CLIENT, 40000)
    return view(node, time, "through", ends=inside, to=outside, tcp_flags="SYN ACK", seq=time, ident=0)


def found(*views: NodeView, nodes: str = "ab") -> list[Finding]:
    return [each for each in TracedCluster(nodes).settle(*views) if each.name == "nodeport_on_some_nodes"]


def test_one_node_answers_and_the_other_does_not() -> None:
    cluster = TracedCluster()
    cluster.show(answered("b", 0), asked("a", MILLI), asked("a", 2 * MILLI), asked("a", 3 * MILLI))
    ((node, first),) = cluster.reach(5_000_000_000)
    assert node == "a" and first.certain and first.packets == 1
    assert first.cause == (
        "NodePort 30080 of Service shop/cart answers on node b, and not on node a: with externalTrafficPolicy Cluster every"
        " node has to answer, so something on node a is in the way."
    )
    assert "kubectl get endpointslices -n shop -l kubernetes.io/service-name=cart" in first.check
    (finding,) = cluster.findings.all
    assert finding.packets == 2
    assert "node a threw away 3 SYNs to port 30080, and answered none" in [proof.text for proof in finding.proofs]


@pytest.mark.parametrize("outcome", [Outcome.REJECTED, Outcome.REFUSED])
def test_each_way_to_throw_a_syn_away(outcome: Outcome) -> None:
    refused = [asked("a", n * MILLI) for n in (1, 2)]
    views = [replace(each, packet=replace(each.packet, outcome=outcome)) for each in refused]
    assert len(found(answered("b", 0), *views)) == 1


@pytest.mark.parametrize(
    "views",
    [
        [asked("a", 1), asked("a", 2)],  # nobody answers
        [answered("b", 0), asked("a", MILLI)],  # once
        [answered("b", 0), answered("a", 1), asked("a", 2), asked("a", 3)],  # this node answers, too
        [answered("a", 0), asked("a", 2), asked("a", 3)],
        [answered("b", 0), asked("a", 1, "in"), asked("a", 2, "through")],  # passed on
        [answered("b", 0), asked("a", 1, port=30081), asked("a", 2, port=30081)],  # of no Service
    ],
)
def test_what_is_no_difference(views: list[NodeView]) -> None:
    assert found(*views) == []


LISTENER = HandshakeHop(99, Netns("cart-a"), handshake=Handshake("SYN", False, 129, 128, 0))
NO_LISTENER = DropHop(99, Netns("cart-a"), drop=Drop("NO_SOCKET", "tcp_v4_rcv"), verdict=Verdict.NONE)
ON_THE_NODE = DropHop(99, HOST, drop=Drop("NO_SOCKET", "tcp_v4_rcv"), verdict=Verdict.NONE)
TO_ENDPOINT = NatHop(9, HOST, Hook.PREROUTING, nat=Nat("DNAT", Endpoints(CLIENT, 1, NODES["a"], PORT), ENDS))


@pytest.mark.parametrize(
    ("hops", "outcome"),
    [
        ((TO_ENDPOINT, LISTENER), Outcome.DROPPED),  # its accept queue is full
        ((SocketHop(98, HOST, socket=Socket(5, "LISTEN", 7, "agent")), replace(LISTENER, netns=HOST)), Outcome.DROPPED),
        ((TO_ENDPOINT, NO_LISTENER), Outcome.REFUSED),
        ((TO_ENDPOINT, ON_THE_NODE), Outcome.REFUSED),  # a pod with the network of the node
    ],
)
def test_a_syn_that_the_node_has_passed_on_is_not_thrown_away_by_it(hops: tuple[Hop, ...], outcome: Outcome) -> None:
    views = [asked("a", n * MILLI) for n in (1, 2, 3)]
    passed = [
        replace(each, packet=replace(each.packet, hops=(*each.packet.hops[:1], *hops), outcome=outcome)) for each in views
    ]
    assert found(answered("b", 0), *passed) == []
    refused = [replace(each, packet=replace(each.packet, hops=(*each.packet.hops[:1], ON_THE_NODE))) for each in views]
    assert len(found(answered("b", 0), *refused)) == 1


def test_another_address_is_not_this_node() -> None:
    views = [asked("a", n) for n in (1, 2)]
    assert found(answered("b", 0), *(replace(each, node="c") for each in views), nodes="abc") == []


def test_incomplete_packets_count_nothing() -> None:
    views = [asked("a", n) for n in (1, 2, 3)]
    views = [replace(each, packet=replace(each.packet, complete=False)) for each in views]
    assert found(answered("b", 0), *views) == []
