# SPDX-License-Identifier: Apache-2.0
"""The nodes of a run: their addresses, and when what they did not show proves something."""

from __future__ import annotations

from tests.support.traced_clusters import NODES, cluster_view
from tracer.joining import traced_nodes
from tracer.joining.traced_nodes import LONGEST_OPEN_NS, LOST_SOMETHING, NOT_SENT, NOT_TRACED, AddressOwner, TracedNodes
from tracer.kube.store import ObjectStore

SECOND = 1_000_000_000


def test_who_has_an_address() -> None:
    view = cluster_view()
    nodes = TracedNodes(view.store)
    assert nodes.owner("10.244.2.8") == AddressOwner("b", "pod shop/cart-b")
    assert nodes.owner(NODES["c"]) == AddressOwner("c", "node c")
    assert nodes.owner("172.30.0.10") is None and nodes.owner("") is None and nodes.owner("x") is None
    assert nodes.addresses("a") == (NODES["a"],) and nodes.addresses("z") == ()


def test_an_address_of_two_objects_is_of_none() -> None:
    view = cluster_view()
    status = {"addresses": [{"type": "InternalIP", "address": NODES["a"]}, {"type": "InternalIP", "address": "10.244.2.8"}]}
    view.store.load([{"kind": "Node", "metadata": {"name": "d"}, "status": status}])
    nodes = TracedNodes(view.store)
    assert nodes.owner(NODES["a"]) is None and nodes.owner("10.244.2.8") is None


def test_a_node_shows_what_came_between_its_begin_and_one_batch_ago() -> None:
    nodes = TracedNodes(ObjectStore())
    assert not nodes.is_traced("a") and nodes.gap("a", 0, 0) == NOT_TRACED
    nodes.begin("a", 10)
    nodes.begin("a", 2)
    assert nodes.is_traced("a") and nodes.gap("a", 9, 11) == NOT_TRACED and nodes.gap("a", 10, 11) == NOT_SENT
    nodes.advance("a", 20)
    assert nodes.gap("a", 10, 11) == NOT_SENT
    nodes.advance("a", 30)
    assert nodes.gap("a", 10, 20) == "" and nodes.gap("a", 10, 21) == NOT_SENT
    nodes.advance("a", 25)
    nodes.advance("a", 26)
    assert nodes.gap("a", 10, 30) == "", "a clock that goes back takes nothing away"


def test_losses() -> None:
    nodes = TracedNodes(ObjectStore())
    nodes.begin("a", 0)
    nodes.advance("a", 90)
    nodes.advance("a", 91)
    nodes.note_loss("a", 40, 50)
    assert [nodes.gap("a", *times) for times in ((10, 39), (39, 41), (50, 60), (51, 60))] == [
        "", LOST_SOMETHING, LOST_SOMETHING, "",
    ]  # fmt: skip
    nodes.forget_losses(51)
    assert nodes.gap("a", 10, 80) == ""


def test_the_end_of_a_node() -> None:
    nodes = TracedNodes(ObjectStore())
    for node in "ab":
        nodes.begin(node, 0)
        nodes.advance(node, 90 * SECOND)
        nodes.advance(node, 91 * SECOND)
    nodes.end("a", is_whole=True)
    assert nodes.gap("a", SECOND, 91 * SECOND) == "" and nodes.gap("a", SECOND, 92 * SECOND) == NOT_SENT
    nodes.end("b", is_whole=False)
    open_since = 90 * SECOND - LONGEST_OPEN_NS
    assert nodes.gap("b", SECOND, open_since - 1) == "" and nodes.gap("b", SECOND, open_since) == LOST_SOMETHING
    nodes.end("never traced", is_whole=True)
    assert traced_nodes.END_OF_TIME > 91 * SECOND
