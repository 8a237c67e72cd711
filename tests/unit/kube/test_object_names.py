# SPDX-License-Identifier: Apache-2.0
"""Names of objects for the completion of a command line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_server import ApiServer
from tracer.kube import object_names
from tracer.kube.object_names import end_names, namespace_names, pod_names, workload_names
from tracer.kube.object_names import service_names as names


def service(namespace: str, name: str, *ports: str) -> dict[str, Any]:
    spec = {"clusterIP": "10.0.0.1", "ports": [{"name": port, "port": 80 + at} for at, port in enumerate(ports)]}
    return {"kind": "Service", "metadata": {"namespace": namespace, "name": name}, "spec": spec}


SERVICES = [service("shop", "cart", "http", "metrics"), service("shop", "pay", "grpc"), service("db", "main")]


def objects_file(folder: Path, *items: Any) -> str:
    path = folder / "objects.json"
    path.write_text(json.dumps({"kind": "List", "items": items}))
    return str(path)


def test_names_of_a_file(tmp_path: Path) -> None:
    path = objects_file(tmp_path, *SERVICES, {"kind": "Node", "metadata": {"name": "node-1"}})
    assert names("", path) == ["db/main", "shop/cart", "shop/pay"]
    assert names("shop/cart:", path) == ["shop/cart:http", "shop/cart:metrics", "shop/pay:grpc"]


@pytest.mark.parametrize("name", ["$(id)", "a b", "`id`", "a;b", "a\nb", "\x1b[2J", "Cart", "-cart", "ä", ""])
def test_a_name_that_the_api_cannot_have_is_not_offered(tmp_path: Path, name: str) -> None:
    path = objects_file(tmp_path, service("shop", name, "http"), service(name, "cart", "http"), service("a", "b", name))
    assert names("", path) == ["a/b"]
    assert names(":", path) == []


def test_a_fifo_and_a_large_file_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert names("", str(tmp_path / "fifo")) == []
    monkeypatch.setattr(object_names, "MOST_FILE", 10)
    assert names("", objects_file(tmp_path, *SERVICES)) == []


def test_names_of_the_api(tmp_path: Path) -> None:
    with ApiServer(SERVICES) as api:
        assert names("", "", api.kubeconfig(tmp_path)) == ["db/main", "shop/cart", "shop/pay"]
        assert names("shop/", "", api.kubeconfig(tmp_path)) == ["shop/cart", "shop/pay"]
        assert [query.get("fieldSelector") for _, query in api.requests][-1] == "metadata.namespace=shop"


def test_an_api_that_refuses_or_does_not_answer_gives_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_names, "ANSWER_SECONDS", 0.2)
    with ApiServer(SERVICES) as api:
        api.refuse["Service"] = 403
        assert names("", "", api.kubeconfig(tmp_path)) == []
        del api.refuse["Service"]
        api.answering.clear()
        assert names("", "", api.kubeconfig(tmp_path)) == []
        api.answering.set()


def test_no_credential_program_is_started(tmp_path: Path) -> None:
    with ApiServer(SERVICES) as api:
        path = Path(api.kubeconfig(tmp_path))
        config = json.loads(path.read_text())
        program = {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": [str(tmp_path / "started")]}
        config["users"][0]["user"] = {"exec": program}
        path.write_text(json.dumps(config))
        assert names("", "", str(path)) == []
        assert not (tmp_path / "started").exists() and not api.requests


def pod(namespace: str, name: str, kind: str = "", owner: str = "", labels: dict[str, str] | None = None) -> dict[str, Any]:
    meta: dict[str, Any] = {"namespace": namespace, "name": name, "labels": labels or {}}
    if kind:
        meta["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": kind, "name": owner, "controller": True, "uid": "1"}]
    return {
        "kind": "Pod",
        "metadata": meta,
        "spec": {"nodeName": "node-1"},
        "status": {"podIP": "10.0.0.9", "phase": "Running"},
    }


PODS = [
    pod("shop", "cart-7f-x", "ReplicaSet", "cart-7f", {"pod-template-hash": "7f"}),
    pod("shop", "pay-0", "StatefulSet", "pay"),
    pod("kube-system", "proxy-1", "DaemonSet", "proxy"),
    pod("batch", "once", "VirtualJob", "x"),
]
POD_NAMES = ["batch/once", "kube-system/proxy-1", "shop/cart-7f-x", "shop/pay-0"]
WORKLOADS = ["kube-system/ds/proxy", "shop/deploy/cart", "shop/rs/cart-7f", "shop/sts/pay"]


def test_pods_workloads_and_namespaces(tmp_path: Path) -> None:
    path = objects_file(tmp_path, *SERVICES, *PODS)
    with ApiServer([*SERVICES, *PODS]) as api:
        for source in (("", path), ("", "", api.kubeconfig(tmp_path))):
            assert pod_names(*source) == POD_NAMES and workload_names(*source) == WORKLOADS
            assert namespace_names(*source) == ["batch", "db", "kube-system", "shop"]
        assert workload_names("shop/", "", api.kubeconfig(tmp_path)) == WORKLOADS[1:]
        assert [query.get("fieldSelector") for _, query in api.requests][-1] == "metadata.namespace=shop"


def test_what_takes_every_kind(tmp_path: Path) -> None:
    path = objects_file(tmp_path, *SERVICES, *PODS)
    found = {
        typed: end_names(typed, path)
        for typed in ("", "10.", "shop", "vm/", "pod/", "svc/shop/cart:", "ns/", "deploy/", "ds/k")
    }
    assert not any(found[typed] for typed in ("", "10.", "shop", "vm/"))
    assert found["pod/"] == [f"pod/{name}" for name in POD_NAMES]
    assert "svc/shop/cart:http" in found["svc/shop/cart:"] and "ns/kube-system" in found["ns/"]
    assert (found["deploy/"], found["ds/k"]) == (["deploy/shop/cart"], ["ds/kube-system/proxy"])


@pytest.mark.parametrize("name", ["$(id)", "a b", "\x1b[2J", "Cart"])
def test_a_name_of_a_pod_that_the_api_cannot_have_is_not_offered(tmp_path: Path, name: str) -> None:
    path = objects_file(tmp_path, pod("shop", name), pod(name, "x"), pod("shop", "y", "StatefulSet", name), *PODS[1:2])
    assert pod_names("", path) == ["shop/pay-0"] and workload_names("", path) == ["shop/sts/pay"]
    assert namespace_names("", path) == ["shop"]


def test_an_account_that_may_list_services_alone(tmp_path: Path) -> None:
    with ApiServer([*SERVICES, *PODS]) as api:
        api.refuse["Pod"] = 403
        assert namespace_names("", "", api.kubeconfig(tmp_path)) == ["db", "shop"]
        assert pod_names("", "", api.kubeconfig(tmp_path)) == []
