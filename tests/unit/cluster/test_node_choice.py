# SPDX-License-Identifier: Apache-2.0
"""The nodes of a run, and the options that each of them gets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import clusters, known_capture
from tracer.cluster import node_choice
from tracer.cluster.node_choice import NodeRequest, choose
from tracer.commands.cluster import node_arguments, options_for
from tracer.errors import BadOption, NoSuchObject
from tracer.kube.catalog import ClusterView
from tracer.kube.selectors import Selectors


def pod(name: str, node: str, address: str, **labels: str) -> clusters.Object:
    made = known_capture.pod(name, address)
    made["spec"]["nodeName"] = node
    made["metadata"]["labels"] = labels
    return made


def view() -> ClusterView:
    """Three nodes: the Service's pods on two of them, a client on the third."""
    found = ClusterView()
    slices = known_capture.endpoints("cart", {"cart-a": ("10.244.1.1", 8080), "cart-b": ("10.244.2.1", 8080)}, "http")
    slices["endpoints"][0]["nodeName"], slices["endpoints"][1]["nodeName"] = "node-1", "node-2"
    service = known_capture.service("cart", "10.96.0.10", "http")
    service["spec"]["ports"][0]["nodePort"] = 30285
    pods = [pod("cart-a", "node-1", "10.244.1.1", app="cart"), pod("cart-b", "node-2", "10.244.2.1", app="cart")]
    pods.append(pod("web", "node-3", "10.244.3.1", app="web"))
    found.store.load([service, slices, *pods, *(clusters.node(f"node-{number}") for number in (1, 2, 3))])
    return found


@pytest.mark.parametrize(
    ("request_", "nodes"),
    [
        (NodeRequest(), [1, 2, 3]),
        (NodeRequest(nodes=("node-2",)), [2]),
        (NodeRequest(selectors=Selectors(services=("shop/cart",))), [1, 2]),
        (NodeRequest(selectors=Selectors(services=("shop/cart:http",)), clients=("pod/shop/web",)), [1, 2, 3]),
        (NodeRequest(selectors=Selectors(services=("shop/cart",)), clients=("shop/web",)), [1, 2, 3]),
        (NodeRequest(nodes=("node-1",), selectors=Selectors(services=("shop/cart",)), clients=("node/node-3",)), [1, 3]),
        (NodeRequest(selectors=Selectors(pods=("shop/web",))), [3]),
        (NodeRequest(selectors=Selectors(labels=("app=cart",))), [1, 2]),
        (NodeRequest(selectors=Selectors(node_ports=(30285,))), [1, 2, 3]),
        (NodeRequest(selectors=Selectors(sources=("pod/shop/web",), destinations=("svc/shop/cart",))), [1, 2, 3]),
    ],
)
def test_the_nodes_that_can_matter(request_: NodeRequest, nodes: list[int]) -> None:
    assert choose(request_, view()) == [f"node-{number}" for number in nodes]


@pytest.mark.parametrize(
    "request_",
    [
        NodeRequest(nodes=("node-9",)), NodeRequest(clients=("node/node-9",)), NodeRequest(clients=("pod/shop/none",)),
        NodeRequest(selectors=Selectors(services=("shop/none",))),
    ],
)  # fmt: skip
def test_an_object_that_does_not_exist(request_: NodeRequest) -> None:
    with pytest.raises(NoSuchObject):
        choose(request_, view())


def test_too_many_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_choice, "MOST_NODES", 2)
    with pytest.raises(BadOption, match="3 nodes are too many for one stream, which takes 2: choose some with --node"):
        choose(NodeRequest(), view())


def arguments(node: str, has_api: bool = True, **options: Any) -> list[str]:
    words = Selectors.of(options)
    return list(node_arguments(options_for(node, options, words, view(), has_api)))


def test_a_service_is_looked_up_on_the_node() -> None:
    assert arguments("node-1", services=("shop/cart",)) == ["--service", "shop/cart"]


def test_a_pod_is_named_on_its_node_and_has_an_address_elsewhere() -> None:
    assert arguments("node-3", pods=("shop/web",)) == ["--pod", "shop/web"]
    assert arguments("node-1", pods=("shop/web",), ports=("80",)) == ["--port", "80", "--host", "10.244.3.1"]
    assert arguments("node-2", labels=("app=web",)) == ["--host", "10.244.3.1"]


def test_without_access_to_the_api_everything_has_an_address() -> None:
    found = arguments("node-1", has_api=False, services=("shop/cart",), drops_only=True)
    assert found == ["--host", "10.244.1.1", "--host", "10.244.2.1", "--host", "10.96.0.10", "--drops-only", "--no-kube"]
    assert arguments("node-1", has_api=False, sources=("pod/shop/web",)) == ["--src", "10.244.3.1", "--no-kube"]


def test_options_without_objects_stay_as_they_are() -> None:
    given: dict[str, Any] = {
        "ports": ("80", "443"),
        "family": 6,
        "attach": "auto",
        "duration": 2.5,
        "write": "dir",
        "verbose": True,
    }
    assert arguments("node-1", **given) == ["--port", "80", "--port", "443", "--verbose", "--duration", "2.5", "--record", "-6"]
    assert arguments("node-1", attach="kprobe", duration=0) == ["--attach", "kprobe"]
