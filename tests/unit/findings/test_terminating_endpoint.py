# SPDX-License-Identifier: Apache-2.0
"""A SYN that is sent to an endpoint of a pod that is being deleted, and refused or not answered there."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "vagrant"))

from incidents import objects
from tests.support import findings as f
from tests.support.syns import at_listener, syn
from tracer.kube.catalog import ClusterView
from tracer.kube.objects import slice_endpoints
from tracer.model.finding import Finding
from tracer.model.hop import Drop, DropHop, NatHop
from tracer.model.kube import ObjectReference
from tracer.model.namespace_name import HOST, Netns
from tracer.model.packet import Packet

REFUSED = syn(DropHop(9, Netns("pod-a"), drop=Drop("NO_SOCKET", "tcp_v4_rcv")))
ENDING = {"ready": False, "serving": True, "terminating": True}


def cluster(conditions: dict[str, bool], other: bool = False) -> ClusterView:
    """conditions: of the endpoint in pod-a. other: whether there is another endpoint, which is ready."""
    ends = [("orders-1", "10.244.0.11", "node-1"), *([("orders-2", "10.244.0.12", "node-1")] if other else [])]
    slice_ = objects.endpoints("shop/orders", ends, 8080, "web")
    slice_["endpoints"][0]["conditions"] = conditions
    return f.view(
        [objects.node("node-1", "192.168.56.10", "10.244.0.0/24"), slice_,
         objects.service("shop/orders", "172.30.1.10", 80, 30285, "web")], "192.168.56.10",
    )  # fmt: skip


def found(made: Packet, known: ClusterView) -> list[Finding]:
    return f.findings_of([made], known, f.FakeNode())[1]


def test_it_refuses() -> None:
    (finding,) = found(REFUSED, cluster(ENDING))
    assert finding.name == "terminating_endpoint" and finding.certain
    assert finding.subject == ObjectReference("Service", "shop", "orders")
    assert finding.cause == (
        "A connection to Service shop/orders:web was sent to pod shop/orders-1 (node-1) at 10.244.0.11:8080, which is being"
        " deleted, and refused it: the Service has no ready endpoint, so kube-proxy (1.26 and later) still sends to terminating"
        " ones that serve."
    )
    assert f.proofs(finding, "object") == [
        "endpoint 10.244.0.11:8080 of shop/orders:web is terminating, serving, not ready (Kubernetes API)"
    ]
    assert "PodDisruptionBudget" in finding.cure and "preStop" in finding.cure


def test_it_does_not_answer() -> None:
    (finding,) = found(syn(), cluster(ENDING))
    assert "which is being deleted, and did not answer" in finding.cause and not finding.certain


def test_kube_proxy_has_not_removed_it_yet() -> None:
    (finding,) = found(REFUSED, cluster(ENDING, other=True))
    assert "kube-proxy had not removed it yet, although the Service has 1 ready endpoint." in finding.cause
    assert "PodDisruptionBudget" not in finding.cure


def test_conntrack_repeats_it() -> None:
    hops = [replace(h, from_conntrack=True) if isinstance(h, NatHop) and h.netns == HOST else h for h in REFUSED.hops]
    (finding,) = found(replace(REFUSED, hops=hops), cluster(ENDING))
    assert "conntrack repeats the translation of an earlier packet" in finding.cause


@pytest.mark.parametrize("conditions", [{"ready": True}, {"ready": False}, {"ready": False, "terminating": False}, {}])
def test_an_endpoint_that_is_not_terminating_is_no_finding(conditions: dict[str, bool]) -> None:
    assert found(REFUSED, cluster(conditions)) == []


def test_an_endpoint_that_answers_is_no_finding() -> None:
    assert found(syn(*at_listener(True)), cluster(ENDING)) == []


@pytest.mark.parametrize(
    ("said", "ready", "terminating", "serving"),
    [({}, True, False, True), ({"ready": False}, False, False, False), (ENDING, False, True, True),
     ({"ready": False, "serving": False, "terminating": True}, False, True, False),
     ({"ready": False, "serving": None}, False, False, False)],
)  # fmt: skip
def test_conditions_of_an_endpoint_slice(said: dict[str, bool], ready: bool, terminating: bool, serving: bool) -> None:
    slice_ = objects.endpoints("shop/orders", [("orders-1", "10.244.0.11", "node-1")], 8080)
    slice_["endpoints"][0]["conditions"] = said
    ((_, end),) = slice_endpoints(slice_)[1]
    assert (end.ready, end.terminating, end.serving) == (ready, terminating, serving)
