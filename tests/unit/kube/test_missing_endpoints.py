# SPDX-License-Identifier: Apache-2.0
"""Packet, SYN line and `explain` show that a Service has no (local) endpoints, with the rules of each kube-proxy."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.support import audits
from tests.support import findings as f
from tests.support.audits import CLIENT, NODE
from tests.support.nodes import MODES, node
from tests.support.syns import FakeInspector
from tests.unit.findings.test_no_local_endpoints import marked_and_dropped
from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.kube.attribution import attribute
from tracer.kube.catalog import ClusterView
from tracer.kube.store import ObjectStore
from tracer.model.handshake import Cause
from tracer.model.packet import Packet
from tracer.predict.query import PathQuery
from tracer.render.text import TextOutput

LABEL, PORT = "2048-game/service-2048", 30420
LOCAL = "no local endpoints (externalTrafficPolicy Local)"
MARKED = f"kubelet KUBE-FIREWALL, marked by KUBE-MARK-DROP for {LABEL}, NodePort {PORT}, {LOCAL}"


def printed(packet: Packet) -> str:
    out = io.StringIO()
    TextOutput(out, io.StringIO()).packet(packet)
    return out.getvalue()


def cause(packet: Packet) -> Cause:
    syns = HandshakeAnalyzer(FakeInspector())
    syns.feed(packet)
    (only,) = syns.flush()
    return only.cause


@pytest.mark.parametrize("mode", MODES)
def test_explain_shows_missing_endpoints(mode: str, tmp_path: Path) -> None:
    this_node = node(mode, "S4")
    state = audits.state(this_node, tmp_path)
    (predicted,) = audits.path_predictor(state, this_node, state.virtual).predict(PathQuery(CLIENT, 0, NODE, PORT))
    packet = attribute(predicted.packet, state.cluster)
    text = printed(packet)
    assert "no local endpoints" in text and f"NodePort {PORT}" in text
    if mode.startswith("1.20"):
        assert LOCAL in text
    found = cause(packet)
    assert found.name == "no endpoints" and found.text.startswith("no local endpoint: ") and LABEL in found.text


def test_a_packet_that_was_marked_and_dropped(tmp_path: Path) -> None:
    packet = attribute(marked_and_dropped(), node("1.20.2-iptables-legacy", "S4").cluster_view(tmp_path))
    assert MARKED in printed(packet)
    found = cause(packet)
    assert found.text == f"no local endpoint: dropped in filter/INPUT: {MARKED}" and found.evidence.value == "observed"


def test_the_comment_alone_is_enough(tmp_path: Path) -> None:
    packet = attribute(marked_and_dropped(), node("1.20.2-iptables-legacy", "S4").cluster_view(tmp_path, with_api=False))
    assert LOCAL in cause(packet).text and LABEL in cause(packet).text


def by_ipvs(cluster: ClusterView, port: int) -> Packet:
    return attribute(f.ipvs(NODE, port), cluster)


def test_refused_by_ipvs_without_local_endpoints(tmp_path: Path) -> None:
    packet = by_ipvs(node("1.20.2-ipvs-nft", "S4").cluster_view(tmp_path), PORT)
    owner = f"Service {LABEL}, NodePort {PORT}, {LOCAL}"
    assert owner in printed(packet)
    found = cause(packet)
    assert found.text == (
        f"no local endpoint: rejected by IPVS in INPUT with icmp-port-unreachable: TCP {NODE}:{PORT} has no real server"
        f" available: {owner}"
    )
    assert found.name == "no endpoints" and found.evidence.value == "derived", (
        "IPVS refused it; the reason follows from the objects"
    )


def test_refused_by_ipvs_without_endpoints(tmp_path: Path) -> None:
    text = cause(by_ipvs(node("1.20.2-ipvs-nft", "S1").cluster_view(tmp_path), 30584)).text
    assert text.startswith("no endpoint: rejected by IPVS in INPUT with") and text.endswith("NodePort 30584, no endpoints")


def test_refused_by_ipvs_for_an_unknown_reason(tmp_path: Path) -> None:
    """The Service has ready pods, and uses those of all nodes: perhaps kube-proxy does not know them yet."""
    found = cause(by_ipvs(node("1.20.2-ipvs-nft", "S2-one").cluster_view(tmp_path), 30285))
    assert found.name == "rejected" and "endpoint" not in found.text
    assert found.text.startswith(f"REJECTed by IPVS in INPUT with icmp-port-unreachable: TCP {NODE}:30285 has no real server")
    without = cause(by_ipvs(node("1.20.2-ipvs-nft", "S4").cluster_view(tmp_path, with_api=False), PORT))
    assert without.name == "rejected" and "local" not in without.text and "/INPUT" not in without.text


def test_a_cluster_ip_has_another_policy() -> None:
    """externalTrafficPolicy does not apply to requests to the cluster IP."""
    store = ObjectStore("node-1")
    store.load(json.loads(json.dumps(node("1.20.2-ipvs-nft", "S4").objects)))
    port = next(p for p in store.services.all(("2048-game", "service-2048")))
    packet = attribute(f.ipvs(port.cluster_ips[0], port.port), ClusterView(store))
    assert "endpoints" not in printed(packet)
