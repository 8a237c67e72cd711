# SPDX-License-Identifier: Apache-2.0
"""A Service with pods that are not ready."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import findings as f
from tests.support.nodes import Node, node
from tests.unit.findings.test_no_local_endpoints import dropped_at_once, marked_and_dropped
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.store import ObjectStore
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.kube import ObjectReference
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Packet

SLICE = {
    "kind": "EndpointSlice",
    "metadata": {"namespace": "default", "name": "lonely-web-x", "labels": {"kubernetes.io/service-name": "lonely-web"}},
    "endpoints": [{"addresses": ["10.244.0.12"], "conditions": {"ready": False}, "nodeName": "node-1",
                   "targetRef": {"kind": "Pod", "namespace": "default", "name": "web-1"}}],
    "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
}  # fmt: skip


def packet(mode: str) -> Packet:
    rules = node(mode, "S1").iptables()
    hit = f.hit(rules, "filter", ("INPUT", "EXTERNAL-SERVICES"), ("KUBE-EXTERNAL-SERVICES", "30584"), verdict="REJECT")
    hop = f.table(rules, Hook.INPUT, "filter", hit, verdict=Verdict.REJECT, reject="icmp-port-unreachable")
    return f.packet([hop], Endpoints(f.CLIENT, 40000, "192.168.56.10", 30584))


def found(mode: str, folder: Path, ready: bool | None) -> list[Finding]:
    one = node(mode, "S1")
    items = one.objects
    if ready is not None:
        slice_ = json.loads(json.dumps(SLICE))
        slice_["endpoints"][0]["conditions"]["ready"] = ready
        items = [o for o in items if o["metadata"]["name"].startswith("lonely-web") is False or o["kind"] == "Service"] + [
            slice_
        ]
    cluster = Node(mode, "S1", {**one.files, "objects.json": json.dumps({"items": items})}).cluster_view(folder)
    made = f.ipvs("192.168.56.10", 30584) if "ipvs" in mode else packet(mode)
    return f.findings_of([made], cluster, f.FakeNode())[1]


@pytest.mark.parametrize("mode", ["1.20.2-iptables-legacy", "1.36.2-iptables-nft", "1.20.2-ipvs-nft"])
def test_not_ready(mode: str, tmp_path: Path) -> None:
    (finding,) = found(mode, tmp_path, False)
    assert finding.name == "endpoint_not_ready" and finding.certain
    assert finding.cause.startswith(
        "Service default/lonely-web:http is refused because it has no endpoints, although 1 pod belongs to"
    )
    assert f.proofs(finding, "object") == ["not ready: pod default/web-1 (node-1) (Kubernetes API)"]
    assert finding.subject == ObjectReference("Service", "default", "lonely-web")


@pytest.mark.parametrize("mode", ["1.20.2-iptables-legacy", "1.20.2-ipvs-nft"])
@pytest.mark.parametrize("ready", [True, None])
def test_a_ready_pod_or_no_pod_is_no_finding(ready: bool | None, mode: str, tmp_path: Path) -> None:
    """Ready: kube-proxy has not received the change yet. No pod: that may be intended."""
    assert found(mode, tmp_path, ready) == []


def here_and_there(mode: str, ready_here: bool, at: str = "node-1") -> ClusterView:
    """A Service of policy Local: one pod runs on this node, another one, which is ready, elsewhere."""
    objects = json.loads(json.dumps(node(mode, "S4").objects))
    ends = [end for o in objects if o["kind"] == "EndpointSlice" and o["metadata"]["namespace"] == "2048-game"
            for end in o["endpoints"]]  # fmt: skip
    for end in ends:
        end["conditions"]["ready"] = True
    ends[0]["nodeName"], ends[0]["conditions"]["ready"] = at, ready_here
    store = ObjectStore("node-1")
    store.load(objects)
    return ClusterView(store, CniCache(()), frozenset({"192.168.56.10"}))


DROPPED: dict[str, Callable[[], Packet]] = {
    "1.20.2-iptables-legacy": marked_and_dropped,
    "1.36.2-iptables-legacy": dropped_at_once,
    "1.20.2-ipvs-nft": lambda: f.ipvs("192.168.56.10", 30420),
}


@pytest.mark.parametrize("mode", DROPPED)
def test_a_local_pod_that_is_not_ready(mode: str) -> None:
    """The Service has endpoints elsewhere; by its policy only the pod of this node would get requests here."""
    (finding,) = f.findings_of([DROPPED[mode]()], here_and_there(mode, False), f.FakeNode())[1]
    fate = "refused" if "ipvs" in mode else "dropped"
    assert finding.name == "endpoint_not_ready" and finding.certain
    assert finding.cause.startswith(
        f"Service 2048-game/service-2048 has externalTrafficPolicy Local and is {fate} on this node because it has no local"
        " endpoints, although 1 of its pods runs here: it is not ready, so it gets no requests."
    )
    (pod,) = f.proofs(finding, "object")
    assert pod.startswith("not ready: pod 2048-game/") and "(node-1)" in pod
    assert f.proofs(finding, "server" if "ipvs" in mode else "rule")


@pytest.mark.parametrize("mode", DROPPED)
def test_a_pod_elsewhere_that_is_not_ready_is_no_finding(mode: str) -> None:
    assert f.findings_of([DROPPED[mode]()], here_and_there(mode, False, "node-2"), f.FakeNode())[1] == []


@pytest.mark.parametrize("mode", DROPPED)
def test_a_local_pod_that_is_ready_is_another_finding(mode: str) -> None:
    found = f.findings_of([DROPPED[mode]()], here_and_there(mode, True), f.FakeNode())[1]
    assert [one.name for one in found] == ["no_local_endpoints"]
