# SPDX-License-Identifier: Apache-2.0
"""Which program replaced rules, as far as it is still known."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracer.connections import change_log
from tracer.connections.change_log import ChangeLog, program_name
from tracer.kube.store import ObjectStore
from tracer.model.timeline import TimelineEntry


def process(proc: Path, pid: int, name: str, parent: int) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "status").write_text(f"Name:\t{name}\nUmask:\t0022\nPPid:\t{parent}\n")


def test_iptables_is_named_after_its_caller(tmp_path: Path) -> None:
    process(tmp_path, 10, "iptables-restor", 9)
    process(tmp_path, 9, "kube-proxy", 1)
    process(tmp_path, 20, "iptables", 1)
    process(tmp_path, 30, "calico-node", 9)
    assert program_name(10, tmp_path) == "kube-proxy"
    assert program_name(20, tmp_path) == "iptables", "its parent is init"
    assert program_name(30, tmp_path) == "calico-node"
    assert program_name(99, tmp_path) == "an unknown program", "the process has ended"


def test_changes_are_read_once() -> None:
    changes = ChangeLog(lambda: 77)
    changes.add_rule_change(5, "nat", 0)
    changes.add_object_change()
    assert changes.read() == [
        TimelineEntry(5, "change", "an unknown program replaced nat"),
        TimelineEntry(77, "change", "Kubernetes' objects changed"),
    ]  # fmt: skip
    assert changes.read() == []


def test_objects_are_named() -> None:
    store, changes = ObjectStore(), ChangeLog(lambda: 77)
    store.on_apply(changes.begin_object_change)
    store.on_change(changes.add_object_change)

    def new_texts() -> list[str]:
        return [entry.text for entry in changes.read()]

    ends = [{"addresses": [f"10.0.0.{n}"], "conditions": {"ready": n != 2}} for n in range(1, 4)]
    meta = {"namespace": "shop", "name": "cart-x", "labels": {"kubernetes.io/service-name": "cart"}}
    slice_ = {"kind": "EndpointSlice", "metadata": meta, "ports": [{"port": 8080}], "endpoints": ends}
    ports = [{"port": 80, "protocol": "TCP"}]
    store.apply(
        "Service", {"kind": "Service", "metadata": meta | {"name": "cart"}, "spec": {"clusterIP": "10.1.0.1", "ports": ports}}
    )
    assert new_texts() == ["Service shop/cart changed"]
    store.apply("EndpointSlice", slice_)
    assert new_texts() == ["EndpointSlice shop/cart-x changed, ready: 10.0.0.1, 10.0.0.3"]
    store.apply("EndpointSlice", slice_)
    assert new_texts() == [], "nothing differs"
    store.apply("EndpointSlice", {**slice_, "endpoints": ends[1:2]})
    assert new_texts() == ["EndpointSlice shop/cart-x changed, ready: none"]
    store.delete("EndpointSlice", slice_)
    assert new_texts() == ["EndpointSlice shop/cart-x is gone"]
    store.apply("Node", {"kind": "Node", "metadata": {"name": "node-1"}, "spec": {"podCIDR": "10.0.0.0/24"}})
    assert new_texts() == ["Node node-1 changed"]
    store.replace("EndpointSlice", [slice_])
    assert new_texts() == ["all EndpointSlices were listed anew"]
    many = [{"addresses": [f"10.0.1.{n}"], "conditions": {}} for n in range(9)]
    store.apply("EndpointSlice", {**slice_, "endpoints": many})
    assert new_texts()[0].endswith("10.0.1.5, ...")


def test_unread_changes_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "MAX_ENTRIES", 3)
    changes = ChangeLog(lambda: 77)
    for n in range(10):
        changes.add_rule_change(n, "nat")
    assert changes.lost == 7 and [entry.time for entry in changes.read()] == [7, 8, 9] and changes.read() == []
