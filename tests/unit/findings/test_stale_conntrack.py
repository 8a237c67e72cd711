# SPDX-License-Identifier: Apache-2.0
"""A translation that conntrack repeats, to an address that no pod and no endpoint has any more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import findings as f
from tests.support.nodes import node
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import Nat, NatHop
from tracer.model.kube import ObjectReference
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook
from tracer.model.packet import Packet
from tracer.rules.rule_resolver import DECIDED_EARLIER

ORIGINAL = Endpoints(f.CLIENT, 40000, "192.168.56.10", 30285)
GONE, LIVE = replace(ORIGINAL, dst="10.244.0.99", dport=8080), replace(ORIGINAL, dst="10.244.0.11", dport=8080)


def packet(after: Endpoints, **more: object) -> Packet:
    hop = NatHop(0, HOST, Hook.PREROUTING, nat=Nat("DNAT", ORIGINAL, after), rule_trace=DECIDED_EARLIER, from_conntrack=True)
    return f.packet([replace(hop, **more)], ORIGINAL)  # type: ignore[arg-type]


def found(made: Packet, folder: Path, with_api: bool = True) -> list[Finding]:
    return f.findings_of([made], node("1.36.2-iptables-legacy", "S2-three").cluster_view(folder, with_api), f.FakeNode())[0]


def test_a_pod_that_is_gone(tmp_path: Path) -> None:
    (finding,) = found(packet(GONE), tmp_path)
    assert finding.name == "stale_conntrack" and finding.certain
    assert finding.subject == ObjectReference("Service", "default", "http-proxy")
    assert "Service default/http-proxy still goes to 10.244.0.99:8080, which is no longer an endpoint or a pod" in finding.cause
    (now,) = [p.text for p in finding.proofs if p.what == "object"]
    assert now.startswith("the endpoints of default/http-proxy are 10.244.0.1") and "10.244.0.99" not in now
    assert "conntrack -D -p tcp --orig-dst 192.168.56.10 --reply-src 10.244.0.99" in finding.cure


@pytest.mark.parametrize(
    "made",
    [packet(LIVE), packet(GONE, from_conntrack=False), packet(GONE, netns="pod-a"), packet(GONE, clone=True),
     packet(replace(GONE, dst="192.168.56.10"))],
)  # fmt: skip
def test_other_translations_are_no_finding(made: Packet, tmp_path: Path) -> None:
    assert found(made, tmp_path) == []


def test_without_objects_it_is_unknown_whether_the_pod_is_gone(tmp_path: Path) -> None:
    assert found(packet(GONE), tmp_path, with_api=False) == []


def test_two_pods_at_one_address_are_not_gone(tmp_path: Path) -> None:
    """It is unknown which of them it is: one may be an old pod, and the API has not reported its end yet."""
    one = node("1.36.2-iptables-legacy", "S2-three")
    cluster = one.cluster_view(tmp_path)
    for name in ("old", "new"):
        meta, status = {"namespace": "default", "name": name}, {"phase": "Running", "podIPs": [{"ip": GONE.dst}]}
        cluster.store.apply("Pod", {"metadata": meta, "spec": {"nodeName": "node-1", "containers": []}, "status": status})
    assert not cluster.pod_at(GONE.dst)
    assert f.findings_of([packet(GONE)], cluster, f.FakeNode())[0] == []
