# SPDX-License-Identifier: Apache-2.0
"""--namespace, --workload and -l: which pods and Services they select."""

from __future__ import annotations

from typing import Any

import pytest

from tracer.capture.format.kube_objects import reduce_object
from tracer.capture.redact.records import RecordRedactor
from tracer.errors import BadOption, NoSuchObject
from tracer.kube.catalog import ClusterView
from tracer.kube.selected_ends import kernel_filter
from tracer.kube.selectors import Selectors, check, ends
from tracer.kube.store import ObjectStore
from tracer.model.filter import MAX_HOSTS, Filter, parse_host


def pod(name: str, address: str, labels: dict[str, str], controller: tuple[str, str] | None = None) -> dict[str, Any]:
    meta: dict[str, Any] = {"namespace": name.partition("/")[0], "name": name.partition("/")[2], "labels": labels}
    if controller:
        kind, owner = controller
        meta["ownerReferences"] = [{"kind": kind, "name": owner, "controller": True, "uid": "1"}]
    return {"kind": "Pod", "metadata": meta, "spec": {"nodeName": "node-1"}, "status": {"podIP": address}}


def behind(name: str, address: str) -> dict[str, Any]:
    """An endpoint of namespace shop."""
    return {"addresses": [address], "targetRef": {"kind": "Pod", "namespace": "shop", "name": name}}


SERVICE = {
    "kind": "Service",
    "metadata": {"namespace": "shop", "name": "cart"},
    "spec": {"clusterIP": "172.30.0.7", "ports": [{"port": 80, "nodePort": 30285}]},
}
SLICE = {
    "kind": "EndpointSlice",
    "metadata": {"namespace": "shop", "name": "cart-1", "labels": {"kubernetes.io/service-name": "cart"}},
    "endpoints": [behind("cart-1", "10.244.0.11"), behind("cart-9", "10.244.1.9")],
    "ports": [{"port": 8080}],
}
HASH = {"pod-template-hash": "5d4f8c7b9"}
BODIES: list[dict[str, Any]] = [
    pod("shop/cart-1", "10.244.0.11", {"app": "cart", "tier": "web", **HASH}, ("ReplicaSet", "cart-5d4f8c7b9")),
    pod("shop/cart-2", "10.244.0.12", {"app": "cart", "tier": "test", **HASH}, ("ReplicaSet", "cart-5d4f8c7b9")),
    pod("shop/db-0", "10.244.0.13", {"app": "db"}, ("StatefulSet", "db")),
    pod("other/cart-1", "10.244.0.14", {"app": "cart"}, ("DaemonSet", "cart")),
    pod("default/web", "10.244.0.15", {}, None),
    SERVICE,
    SLICE,
]


@pytest.fixture
def cluster() -> ClusterView:
    store = ObjectStore("node-1")
    store.load(BODIES)
    return ClusterView(store)


def selected(cluster: ClusterView, **options: tuple[str, ...]) -> set[str]:
    selection = Selectors.of(options)
    check(selection, cluster)
    return {address for address, _, _ in ends(selection, cluster)}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"labels": ("app=cart",)}, {"11", "12", "14"}), ({"labels": ("app==cart,tier!=test",)}, {"11", "14"}),
        ({"labels": ("app=cart",), "namespaces": ("shop",)}, {"11", "12"}), ({"labels": ("tier",)}, {"11", "12"}),
        ({"labels": ("app,!tier",)}, {"13", "14"}), ({"labels": ("app=db", "tier=web")}, {"11", "13"}),
        ({"workloads": ("shop/deploy/cart",)}, {"11", "12"}), ({"workloads": ("shop/rs/cart-5d4f8c7b9",)}, {"11", "12"}),
        ({"workloads": ("deployment/cart",), "namespaces": ("shop",)}, {"11", "12"}),
        ({"workloads": ("shop/sts/db",)}, {"13"}), ({"workloads": ("other/ds/cart",)}, {"14"}),
        ({"pods": ("db-0",), "namespaces": ("shop",)}, {"13"}), ({"pods": ("web",)}, {"15"}),
        ({"pods": ("other/cart-1",), "labels": ("app=db",)}, {"13", "14"}),
    ],
)  # fmt: skip
def test_pods(cluster: ClusterView, options: dict[str, tuple[str, ...]], expected: set[str]) -> None:
    assert selected(cluster, **options) == {f"10.244.0.{last}" for last in expected}


def test_a_namespace_is_its_pods_and_services(cluster: ClusterView) -> None:
    found = ends(Selectors.of({"namespaces": ("shop",)}), cluster)
    assert {("172.30.0.7", 80, "tcp"), ("", 30285, "tcp"), ("10.244.1.9", 8080, "tcp"), ("10.244.0.13", 0, "")} <= found
    assert "10.244.0.14" not in {address for address, _, _ in found}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"labels": ("app=none",)}, "There is no pod with the labels app=none on this node."),
        ({"workloads": ("shop/ds/cart",)}, "There is no pod of shop/ds/cart on this node."),
        ({"namespaces": ("none",)}, "There is no Service in namespace none, and no pod of it on this node."),
    ],
)
def test_what_does_not_exist(cluster: ClusterView, options: dict[str, tuple[str, ...]], sentence: str) -> None:
    with pytest.raises(NoSuchObject) as e:
        selected(cluster, **options)
    assert (str(e.value), e.value.status) == (sentence, 9)


@pytest.mark.parametrize("word", ["", "app in (a)", "=x", "!app=x", "app=a b", "app=x,"])
def test_texts_that_are_no_label_selectors(word: str) -> None:
    with pytest.raises(BadOption, match=r"^-l .* is no label selector: write app=web, app!=web, app or !app, "):
        Selectors(labels=(word,))


@pytest.mark.parametrize("word", ["cart", "pod/cart", "shop/cart/deploy", "deploy/", "a/b/deploy/c"])
def test_texts_that_are_no_workloads(word: str) -> None:
    with pytest.raises(BadOption, match=r"^--workload .* is no workload: write deploy/NAME or NS/deploy/NAME; "):
        Selectors(workloads=(word,))


def test_more_addresses_than_the_kernel_takes_leave_room_for_the_other_options(cluster: ClusterView) -> None:
    wanted = frozenset((f"10.1.0.{n}", 0, "") for n in range(200))
    base = Filter(sources=tuple(parse_host(f"10.2.0.{n}") for n in range(100)))
    assert kernel_filter(base, wanted, cluster) == base, "all addresses: user space selects"
    assert len(kernel_filter(Filter(), wanted, cluster).hosts) == 200 <= MAX_HOSTS


def test_a_capture_has_what_selects_a_pod_and_a_redacted_one_has_no_labels() -> None:
    store = ObjectStore("node-1")
    store.load([reduce_object(str(body["kind"]), body) for body in BODIES])
    assert selected(ClusterView(store), workloads=("shop/deploy/cart",)) == {"10.244.0.11", "10.244.0.12"}
    kept = reduce_object("Pod", BODIES[1])
    assert kept["metadata"]["ownerReferences"] == [{"kind": "ReplicaSet", "name": "cart-5d4f8c7b9", "controller": True}]
    redacted = RecordRedactor()._object(kept)
    assert redacted["metadata"]["labels"] == {} and "cart" not in str(redacted)
