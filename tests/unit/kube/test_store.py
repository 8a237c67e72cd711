# SPDX-License-Identifier: Apache-2.0
"""The store's indexes, while objects come, change and go."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.support.nodes import node
from tracer.errors import NoObjects
from tracer.kube import objects
from tracer.kube import store as store_module
from tracer.kube.chain_names import endpoint_hash, nftables_name, read_nftables_name, service_hash
from tracer.kube.store import ObjectStore
from tracer.util.evictions import evictions
from tracer.util.multidict import MultiIndex


def service(name: str, ip: str, **port: Any) -> dict[str, Any]:
    spec = {"clusterIP": ip, "ports": [{"port": 80, "protocol": "TCP", **port}]}
    return {"kind": "Service", "metadata": {"namespace": "shop", "name": name}, "spec": spec}


def slice_of(name: str, *ips: str) -> dict[str, Any]:
    meta = {"namespace": "shop", "name": f"{name}-x", "labels": {"kubernetes.io/service-name": name}}
    ends = [{"addresses": [ip], "targetRef": {"kind": "Pod", "namespace": "shop", "name": f"pod-{ip}"}} for ip in ips]
    ports = [{"name": "", "port": 8080, "protocol": "TCP"}]
    return {"kind": "EndpointSlice", "metadata": meta, "endpoints": ends, "ports": ports}


def pod(name: str, ip: str, **more: Any) -> dict[str, Any]:
    spec = {"nodeName": "n", "containers": [{"ports": [{"containerPort": 80, "hostPort": 8080}]}], **more}
    state = {"podIP": ip, "phase": more.get("phase", "Running")}
    return {"kind": "Pod", "metadata": {"namespace": "shop", "name": name}, "spec": spec, "status": state}


def test_a_value_stays_until_its_last_removal() -> None:
    index: MultiIndex[str, int] = MultiIndex()
    for _ in range(3):
        index.add("k", 1)
    index.add("k", 2)
    assert (index.all("k"), index.one("k")) == ((1, 2), None)
    for left in ((1, 2), (1, 2), (2,)):
        index.remove("k", 1)
        assert index.all("k") == left
    index.remove("k", 2)
    assert len(index) == 0 and index.values() == []


def test_endpoints_that_two_services_share() -> None:
    store = ObjectStore()
    store.load([service("a", "10.0.0.1"), service("b", "10.0.0.2"), slice_of("a", "10.1.0.1"), slice_of("b", "10.1.0.1")])
    assert store.pod_at("10.1.0.1") == ("shop", "pod-10.1.0.1", "")
    store.delete("Service", service("a", "10.0.0.1"))
    assert store.pod_at("10.1.0.1") == ("shop", "pod-10.1.0.1", "")
    store.delete("EndpointSlice", slice_of("b"))
    assert store.pod_at("10.1.0.1") is None


def test_slices_before_their_service_and_slices_that_move() -> None:
    store = ObjectStore()
    store.apply("EndpointSlice", slice_of("a", "10.1.0.1"))
    assert not store.by_endpoint.all(("10.1.0.1", 8080, "tcp"))
    store.apply("Service", service("a", "10.0.0.1"))
    assert store.by_endpoint.one(("10.1.0.1", 8080, "tcp"))
    store.apply("Service", service("b", "10.0.0.2"))
    moved = slice_of("b", "10.1.0.1")
    moved["metadata"]["name"] = "a-x"
    store.apply("EndpointSlice", moved)
    assert [p.name for p in store.by_endpoint.all(("10.1.0.1", 8080, "tcp"))] == ["b"]


def test_replace_forgets_what_is_not_listed() -> None:
    store = ObjectStore()
    store.load([service("a", "10.0.0.1", nodePort=30001), service("b", "10.0.0.2"), pod("p", "10.1.0.9")])
    store.replace("Service", [service("b", "10.0.0.3")])
    assert not store.by_node_port.all((30001, "tcp"))
    assert not store.by_address.all(("10.0.0.2", 80, "tcp"))
    assert store.by_address.one(("10.0.0.3", 80, "tcp"))
    assert store.pod_at("10.1.0.9"), "another kind"
    store.replace("Pod", [])
    assert store.pod_at("10.1.0.9") is None


def test_services_that_come_and_go_leave_nothing() -> None:
    store = ObjectStore()
    for n in range(50):
        for kind, body in (("Service", service(f"s{n}", "10.0.0.1")), ("EndpointSlice", slice_of(f"s{n}", "10.1.0.1"))):
            store.apply(kind, body)
        moved = slice_of("elsewhere", "10.1.0.2")
        moved["metadata"]["name"] = f"s{n}-x"
        store.apply("EndpointSlice", moved)
        store.delete("EndpointSlice", moved)
        store.delete("Service", service(f"s{n}", "10.0.0.1"))
    held = {name: len(value) for name, value in vars(store).items() if isinstance(value, (dict, set, list, MultiIndex))}
    assert not any(held.values()), held
    assert store._entry_count == store._end_count == 0


@pytest.mark.parametrize("how", ["apply", "load", "replace"])
def test_too_many_objects_are_not_used_in_part(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a part of the slices a Service would be said to have no endpoint."""
    monkeypatch.setattr(store_module, "MOST_ENTRIES", 100)
    evictions.read()
    store, changes = ObjectStore("node-1"), []
    store.on_change(lambda: changes.append(len(store)))
    slices = [slice_of(f"s{n}", f"10.1.0.{n}") for n in range(200)]
    services = [service(f"s{n}", f"10.0.0.{n}") for n in range(200)]
    if how == "load":
        store.load([*services, *slices])
    elif how == "replace":
        store.replace("Service", services)
        store.replace("EndpointSlice", slices)
    else:
        for one in zip(services, slices, strict=True):
            store.apply("Service", one[0])
            store.apply("EndpointSlice", one[1])
            assert store._entry_count + store._end_count + len(store) <= 100
    assert store.is_full and len(store) == 0 and changes[-1] == 0
    assert not any(len(value) for value in vars(store).values() if isinstance(value, (dict, set, MultiIndex)))
    assert evictions.read()["objects of Kubernetes"] > 10
    store.apply("Service", services[0])
    store.replace("Service", services[:1])
    store.load(services[:1])
    store.delete("Service", services[0])
    assert len(store) == 0 and store.by_address.one(("10.0.0.0", 80, "tcp")) is None


def test_an_address_of_two_living_pods_has_no_pod() -> None:
    store = ObjectStore()
    store.load([pod("p", "10.1.0.9"), pod("q", "10.1.0.9"), pod("done", "10.1.0.8", phase="Succeeded")])
    assert store.pod_at("10.1.0.9") is None
    dead = pod("done", "10.1.0.8")
    dead["status"]["phase"] = "Succeeded"
    store.apply("Pod", dead)
    assert store.pod_at("10.1.0.8") is None
    assert len(store.by_host_port.all((8080, "tcp"))) == 2


def test_a_pod_of_the_hosts_network_has_no_address_of_its_own() -> None:
    store = ObjectStore()
    store.load([pod("p", "192.168.0.1", hostNetwork=True)])
    assert store.pod_at("192.168.0.1") is None
    assert store.pods.one(("shop", "p"))


def test_names_of_chains() -> None:
    assert service_hash("default/http-proxy", "tcp") == "5DZI2HW7VHZLUOJ5"
    assert endpoint_hash("default/http-proxy", "tcp", "10.244.0.12", 8080) == "3PDFFOCG7ZDSLXW5"
    name = "endpoint-" + nftables_name("a/b/tcp/c__fd00..1/80")
    found = read_nftables_name(name)
    assert found and (found.address, found.endpoint_port, found.port_name) == ("fd00::1", 80, "c")
    assert read_nftables_name(name.replace("a/b", "a/x")) is None, "the hash does not agree"
    assert read_nftables_name("services") is None


def test_a_real_cluster() -> None:
    store = ObjectStore()
    store.load([{"kind": "List", "items": node("1.36.2-iptables-nft", "S2-three").objects}])
    assert store.by_chain.one("5DZI2HW7VHZLUOJ5") == store.by_node_port.one((30285, "tcp"))
    assert store.by_endpoint_chain.one("3PDFFOCG7ZDSLXW5")
    assert store.pod_at("10.244.0.12") == ("default", "http-proxy-b", "node-1")
    assert {n.name for n in store.nodes.values()} == {"node-1", "node-2"}


def test_a_change_of_fields_that_are_not_kept_is_no_change() -> None:
    store, calls = ObjectStore(), []
    store.on_change(lambda: calls.append(store.version))
    heartbeat = {
        "kind": "Node",
        "metadata": {"name": "n"},
        "status": {"addresses": [], "conditions": [{"lastHeartbeatTime": 1}]},
    }
    store.apply("Node", heartbeat)
    store.apply("Node", heartbeat | {"metadata": {"name": "n", "resourceVersion": "2"}})
    store.replace("Node", [heartbeat])
    store.delete("Service", service("never", "10.0.0.1"))
    assert calls == [1]
    store.replace("Node", [])
    assert calls == [1, 2] and not store.nodes.values()


def test_a_file_of_objects_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that never ends gives one sentence; a pipe, such as `<(kubectl get ...)`, is read."""
    monkeypatch.setattr(objects, "MOST_BYTES", 1 << 20)
    with pytest.raises(NoObjects, match="/dev/zero has more than 1 MB"):
        objects.read("/dev/zero")
    read, write = os.pipe()
    with os.fdopen(write, "wb") as out:
        out.write(b'{"kind": "Service", "metadata": {"name": "a", "namespace": "b"}}')
    try:
        assert [o["kind"] for o in objects.read(f"/proc/self/fd/{read}")] == ["Service"]
    finally:
        os.close(read)
