# SPDX-License-Identifier: Apache-2.0
"""A NodePort and a process of the node on one port: refused, or sent to a pod; no finding if the process is kube-proxy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import findings as f
from tests.support.nodes import node
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.kube import ObjectReference
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Packet
from tracer.node.node import ListeningSocket

NGINX = ListeningSocket("0.0.0.0", 30584, 812, "nginx")
LONELY = Endpoints(f.CLIENT, 40000, "192.168.56.10", 30584)
ORIGINAL, INSIDE = (Endpoints(f.CLIENT, 40000, *end) for end in (("192.168.56.10", 30285), ("10.244.0.11", 8080)))


def refused(mode: str = "1.20.2-iptables-legacy", number: int = 1) -> Packet:
    rules = node(mode, "S1").iptables()
    hit = f.hit(rules, "filter", ("INPUT", "EXTERNAL-SERVICES"), ("KUBE-EXTERNAL-SERVICES", "30584"), verdict="REJECT")
    hop = f.table(rules, Hook.INPUT, "filter", hit, verdict=Verdict.REJECT, reject="icmp-port-unreachable")
    return f.packet([hop], LONELY, number)


def sent_to_a_pod() -> Packet:
    rules = node("1.20.2-iptables-legacy", "S2-one").iptables()
    hit = f.hit(
        rules, "nat", ("PREROUTING", "KUBE-SERVICES"), ("KUBE-SERVICES", "KUBE-NODEPORTS"), ("KUBE-NODEPORTS", "KUBE-SVC"),
        ("KUBE-SVC-5DZI2HW7VHZLUOJ5", "KUBE-SEP"), ("KUBE-SEP-66PQAUDBO7BH47NT", "DNAT"),
    )  # fmt: skip
    return f.packet([f.nat(rules, Hook.PREROUTING, "DNAT", ORIGINAL, INSIDE, hit)], ORIGINAL)


def found(packets: list[Packet], scenario: str, folder: Path, on: f.FakeNode, with_api: bool = True) -> list[Finding]:
    return f.findings_of(packets, node("1.20.2-iptables-legacy", scenario).cluster_view(folder, with_api), on)[0]


@pytest.mark.parametrize("mode", ["1.20.2-iptables-legacy", "1.20.2-iptables-nft", "1.36.2-iptables-legacy"])
@pytest.mark.parametrize("with_api", [True, False])
def test_refused_without_endpoints(mode: str, with_api: bool, tmp_path: Path) -> None:
    on = f.FakeNode(listeners={(30584, "tcp"): NGINX})
    (finding,) = f.findings_of([refused(mode)], node(mode, "S1").cluster_view(tmp_path, with_api), on)[0]
    assert finding.name == "nodeport_host_process" and finding.certain
    assert finding.subject == ObjectReference("Service", "default", "lonely-web")
    assert finding.cause == (
        "nginx (pid 812) listens on port 30584 of this node, but tcp 30584 is also the NodePort of Service"
        " default/lonely-web:http,"
        " which has no endpoints: the Service's rule refuses every request, and the process never sees any of them."
    )
    assert "KUBE-EXTERNAL-SERVICES 1: " in f.proofs(finding, "rule")[0] and f.proofs(finding, "rule")[0].endswith("(observed)")
    assert f.proofs(finding, "process") == ["nginx (pid 812) listens on tcp 0.0.0.0:30584 of the node (/proc/net)"]
    assert 'can\'t open "nodePort for default/lonely-web:http"' in finding.check
    assert "services.nodeports" in finding.cure


def test_sent_to_a_pod_and_not_to_the_process(tmp_path: Path) -> None:
    on = f.FakeNode(listeners={(30285, "tcp"): ListeningSocket("::", 30285, 812, "nginx")})
    (finding,) = found([sent_to_a_pod()], "S2-one", tmp_path, on)
    assert "its rule sends every request to pod default/http-proxy-a (node-1), and the process never sees any" in finding.cause
    assert f.proofs(finding, "process") == ["nginx (pid 812) listens on tcp [::]:30285 of the node (/proc/net)"]


def test_the_socket_that_kube_proxy_holds_is_no_finding(tmp_path: Path) -> None:
    mine = ListeningSocket("0.0.0.0", 30285, 7, "kube-proxy")
    assert not found(
        [sent_to_a_pod()], "S2-one", tmp_path, f.FakeNode(listeners={(30285, "tcp"): mine}, proxies=frozenset({7}))
    )
    assert not found([sent_to_a_pod()], "S2-one", tmp_path, f.FakeNode())


def test_an_unseen_process_may_be_kube_proxy(tmp_path: Path) -> None:
    on = f.FakeNode(listeners={(30584, "tcp"): ListeningSocket("0.0.0.0", 30584, 0, "")})
    reported, every = f.findings_of([refused()], node("1.20.2-iptables-legacy", "S1").cluster_view(tmp_path), on)
    assert not reported and [e.certain for e in every] == [False]


def test_one_cause_is_reported_once_and_counted(tmp_path: Path) -> None:
    on = f.FakeNode(listeners={(30584, "tcp"): NGINX})
    reported, (at_the_end,) = f.findings_of(
        [refused(number=n) for n in (3, 4, 9)], node("1.20.2-iptables-legacy", "S1").cluster_view(tmp_path), on
    )
    assert len(reported) == 1
    assert (at_the_end.packets, at_the_end.numbers) == (3, (3, 4, 9))
    assert (at_the_end.first, at_the_end.last) == (3 * f.SECOND, 9 * f.SECOND)


@pytest.mark.parametrize(("reserved", "shown"), [("", 1), ("30000-32767", 0), ("22,30584", 0), ("30585", 1)])
def test_a_port_in_the_ephemeral_range_is_shown_unless_reserved(reserved: str, shown: int, tmp_path: Path) -> None:
    settings = {"net/ipv4/ip_local_port_range": "30000 60999", "net/ipv4/ip_local_reserved_ports": reserved}
    (finding,) = found([refused()], "S1", tmp_path, f.FakeNode(listeners={(30584, "tcp"): NGINX}, settings=settings))
    assert len(f.proofs(finding, "setting")) == shown


def test_ipvs_sends_it_to_a_pod(tmp_path: Path) -> None:
    on = f.FakeNode(listeners={(30285, "tcp"): ListeningSocket("::", 30285, 812, "nginx")})
    cluster = node("1.20.2-ipvs-nft", "S2-three").cluster_view(tmp_path)
    (finding,) = f.findings_of([f.ipvs("192.168.56.10", 30285, "10.244.0.11")], cluster, on)[0]
    assert finding.name == "nodeport_host_process" and finding.certain
    assert "and IPVS sends every request to one of the Service's pods, and the process never" in finding.cause
    assert f.proofs(finding, "server") == [
        "IPVS virtual server tcp 192.168.56.10:30285 -> 10.244.0.11:8080 (Service default/http-proxy, NodePort 30285 -> pod"
        " default/http-proxy-a (node-1)) (observed)"
    ]
    assert not f.findings_of([f.ipvs("192.168.56.10", 30285, "10.244.0.11", "earlier")], cluster, on)[1], (
        "decided by an earlier packet"
    )
    assert not f.findings_of([f.ipvs("172.30.253.123", 8080, "10.244.0.11")], cluster, on)[1], "at its cluster IP"


def test_ipvs_refuses_it(tmp_path: Path) -> None:
    on = f.FakeNode(listeners={(30584, "tcp"): NGINX})
    (finding,) = f.findings_of([f.ipvs("192.168.56.10", 30584)], node("1.20.2-ipvs-nft", "S1").cluster_view(tmp_path), on)[0]
    assert "which has no endpoints here: IPVS refuses every request, and the process never" in finding.cause
    assert "tcp 192.168.56.10:30584 has no real server (" in f.proofs(finding, "server")[0]
