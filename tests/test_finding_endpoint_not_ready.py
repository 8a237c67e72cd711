# SPDX-License-Identifier: Apache-2.0
"""A Service whose pods are there and not ready."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import findings as f
from tests.nodes import Node, node
from tracer.findings.model import Finding
from tracer.model import Endpoints, Packet

SLICE = {
    "kind": "EndpointSlice",
    "metadata": {"namespace": "default", "name": "lonely-web-x", "labels": {"kubernetes.io/service-name": "lonely-web"}},
    "endpoints": [{"addresses": ["10.244.0.12"], "conditions": {"ready": False}, "nodeName": "node-1",
                   "targetRef": {"kind": "Pod", "namespace": "default", "name": "web-1"}}],
    "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
}  # fmt: skip


def packet(mode: str) -> Packet:
    rules = node(mode, "S1").iptables()
    way = f.visit(rules, "filter", ("INPUT", "EXTERNAL-SERVICES"), ("KUBE-EXTERNAL-SERVICES", "30584"), verdict="REJECT")
    hop = f.table(rules, "INPUT", "filter", way, verdict="REJECT", reject="icmp-port-unreachable")
    return f.packet([hop], Endpoints(f.CLIENT, 40000, "192.168.56.10", 30584))


def found(mode: str, folder: Path, ready: bool | None) -> list[Finding]:
    one = node(mode, "S1")
    items = one.objects
    if ready is not None:
        more = json.loads(json.dumps(SLICE))
        more["endpoints"][0]["conditions"]["ready"] = ready
        items = [o for o in items if o["metadata"]["name"].startswith("lonely-web") is False or o["kind"] == "Service"] + [more]
    known = Node(mode, "S1", {**one.files, "objects.json": json.dumps({"items": items})}).known(folder)
    made = f.ipvs("192.168.56.10", 30584) if "ipvs" in mode else packet(mode)
    return f.look([made], known, f.FakeNode())[1]


@pytest.mark.parametrize("mode", ["1.20.2-iptables-legacy", "1.36.2-iptables-nft", "1.20.2-ipvs-nft"])
def test_not_ready(mode: str, tmp_path: Path) -> None:
    (told,) = found(mode, tmp_path, False)
    assert told.name == "endpoint_not_ready" and told.certain
    assert told.cause.startswith(
        "Service default/lonely-web:http is refused for having no endpoints, although 1 pod stands behind"
    )
    assert f.proofs(told, "object") == ["not ready: pod default/web-1 (node-1) (Kubernetes API)"]


@pytest.mark.parametrize("mode", ["1.20.2-iptables-legacy", "1.20.2-ipvs-nft"])
@pytest.mark.parametrize("ready", [True, None])
def test_ready_or_nobody_behind_it(ready: bool | None, mode: str, tmp_path: Path) -> None:
    """Ready: kube-proxy has only not heard of it yet. Nobody: that may be meant."""
    assert found(mode, tmp_path, ready) == []
