# SPDX-License-Identifier: Apache-2.0
"""Rules with "no local endpoints": a finding where the pods run here, no finding where the policy works as intended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import audits
from tests.support.findings import FakeNode
from tests.support.nodes import MODES, Node, node
from tracer.audit.no_local_endpoints import check
from tracer.node.kube_proxy import KubeProxy

BARE = FakeNode(proxy=KubeProxy(77, (("node-1", "the host name"),)))
FULL = "node-1.ec2.internal"


def moved(one: Node) -> Node:
    """The recorded node with the Service's pods on it, registered under its full name."""
    text = one.files["objects.json"]
    items = json.loads(text)["items"]
    for item in items:
        if item["kind"] == "Node" and item["metadata"]["name"] == "node-1":
            item["metadata"]["name"] = FULL
        for end in (item.get("endpoints") or []) if item["kind"] == "EndpointSlice" else []:
            end["nodeName"] = FULL
        for subset in (item.get("subsets") or []) if item["kind"] == "Endpoints" else []:
            for end in subset.get("addresses", []):
                end["nodeName"] = FULL
    return Node(one.mode, one.scenario, {**one.files, "objects.json": json.dumps({"items": items})})


@pytest.mark.parametrize("mode", [m for m in MODES if "ipvs" not in m])
def test_pods_that_run_here(mode: str, tmp_path: Path) -> None:
    state = audits.state(moved(node(mode, "S4")), tmp_path, BARE)
    state.cluster.store.node = FULL
    (finding,) = check(state)
    assert finding.certain and finding.cause.startswith("Service 2048-game/service-2048 has externalTrafficPolicy Local")
    assert "kube-proxy uses the node name node-1 (the host name) but the endpoints have node-1.ec2.internal" in finding.cause
    assert finding.proofs[0].what == "rule" and (
        "no local endpoints" in finding.proofs[0].text or ": drop" in finding.proofs[0].text
    )


@pytest.mark.parametrize("mode", MODES)
def test_pods_that_run_elsewhere(mode: str, tmp_path: Path) -> None:
    assert list(check(audits.state(node(mode, "S4"), tmp_path, BARE))) == []
