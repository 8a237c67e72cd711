# SPDX-License-Identifier: Apache-2.0
"""libcni's result cache: containers and pods that come and go, and invalid files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tracer.kube import cni_cache
from tracer.kube.catalog import ClusterView
from tracer.kube.chain_names import portmap_chain
from tracer.kube.cni_cache import CniCache
from tracer.kube.owner_resolver import LEFT_OUT, ObjectSource, OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.kube.store import ObjectStore
from tracer.model.filter import Filter


def write(folder: Path, container: str, pod: str, address: str, port: int = 0, **more: object) -> Path:
    path = folder / f"net-{container}-eth0"
    mappings = [{"hostPort": port, "containerPort": 80, "protocol": "tcp"}] if port else []
    body = {
        "kind": "cniCacheV1",
        "containerId": container,
        "networkName": "net",
        "cniArgs": [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", pod]],
        "capabilityArgs": {"portMappings": mappings},
        "result": {"ips": [{"address": f"{address}/24"}]},
    }
    path.write_text(json.dumps(body | more))
    return path


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cni_cache, "SCAN_INTERVAL_SECONDS", -1.0)


def test_by_container_chain_address_and_port(tmp_path: Path) -> None:
    write(tmp_path, "c1", "web", "10.0.0.5", 8080)
    cache = CniCache((tmp_path, tmp_path / "missing"))
    found = {cache.of("c1"), cache.of_chain(portmap_chain("net", "c1")), cache.at("10.0.0.5"), *cache.host_port(8080, "tcp")}
    assert [s and (s.namespace, s.name) for s in found] == [("shop", "web")]
    assert cache.addresses("shop", "web") == ["10.0.0.5"]
    assert cache.host_port(8080, "udp") == ()


def test_pods_come_and_go(tmp_path: Path) -> None:
    cache = CniCache((tmp_path,))
    assert cache.of("c1") is None
    first = write(tmp_path, "c1", "web", "10.0.0.5")
    assert cache.of("c1"), "written after the first scan"
    first.unlink()
    write(tmp_path, "c2", "other", "10.0.0.5")
    assert cache.of("c2")
    found = cache.at("10.0.0.5")
    assert found and found.name == "other", "another pod has the address now"


def test_an_address_of_two_pods_has_no_answer(tmp_path: Path) -> None:
    write(tmp_path, "c1", "web", "10.0.0.5")
    write(tmp_path, "c2", "other", "10.0.0.5")
    assert CniCache((tmp_path,)).at("10.0.0.5") is None


def test_the_api_and_libcni_disagree(tmp_path: Path) -> None:
    write(tmp_path, "c1", "web", "10.0.0.5")
    store = ObjectStore()
    body = {"kind": "Pod", "metadata": {"namespace": "shop", "name": "web"}, "spec": {"nodeName": "n"}, "status": {}}
    store.load([body | {"status": {"podIP": "10.0.0.5"}}])
    known = ClusterView(store, CniCache((tmp_path,)))
    assert known.pod_at("10.0.0.5") == ("shop", "web", "n")
    store.load([body, body | {"metadata": {"namespace": "shop", "name": "new"}, "status": {"podIP": "10.0.0.5"}}])
    assert known.pod_at("10.0.0.5") is None


@pytest.mark.parametrize(
    "more",
    [
        {"kind": "other"}, {"cniArgs": []}, {"cniArgs": None}, {"result": {"ips": [{}]}}, {"containerId": []},
        {"networkName": 1}, {"result": {"ips": [{"address": 5}]}},
        {"capabilityArgs": {"portMappings": [{"hostPort": 1e999, "containerPort": 1}]}},
    ],
)  # fmt: skip
def test_files_that_name_no_pod(tmp_path: Path, more: dict[str, object]) -> None:
    write(tmp_path, "c1", "web", "10.0.0.5", 0, **more)
    (tmp_path / "net-c2-eth0").write_text("{")
    (tmp_path / "directory").mkdir()
    assert CniCache((tmp_path,)).of("c1") is None


def test_files_that_do_not_belong_to_root_alone(tmp_path: Path) -> None:
    """A user with write access to the cache could give an address to any pod."""
    write(tmp_path, "c1", "web", "10.0.0.5").chmod(0o666)
    (tmp_path / "link").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "net-c2-eth0")
    write(tmp_path, "c3", "large", "10.0.0.6", more="x" * 2_000_000)
    (tmp_path / "net-c4-eth0").write_text("[" * 900_000)
    assert CniCache((tmp_path,)).every() == []


def test_more_files_than_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cni_cache, "MOST_FILES", 3)
    for number in range(3):
        write(tmp_path, f"c{number}", "web", f"10.0.0.{number}")
    cache = CniCache((tmp_path,))
    kube = OwnerResolver(ObjectSource(none=True, known=lambda: ClusterView(ObjectStore(), cache)), Selectors(), Filter())
    assert (len(cache.every()), cache.left_out, kube.notes()) == (3, False, [])
    (tmp_path / "one").mkdir()
    assert cache.of("no such") is None
    assert len(cache.every()) <= 3 and cache.left_out
    assert kube.notes() == [LEFT_OUT] and kube.notes() == []
