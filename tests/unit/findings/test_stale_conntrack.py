# SPDX-License-Identifier: Apache-2.0
"""A translation that conntrack repeats, to an address that no pod and no endpoint has any more."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "vagrant"))

from incidents import objects
from tests.support import findings as f
from tests.support.nodes import node
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import Nat, NatHop
from tracer.model.kube import ObjectReference
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook
from tracer.model.packet import Packet
from tracer.model.rule import RuleTrace
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


def test_what_rules_in_force_choose_is_no_old_translation(tmp_path: Path) -> None:
    """A SYN that is sent again repeats what the rules chose for the first one a second ago."""
    rules = node("1.36.2-iptables-legacy", "S2-one").iptables()
    chosen = f.hit(rules, "nat", ("PREROUTING", "KUBE-SERVICES"))
    by_rules = packet(GONE, from_conntrack=False, rule_trace=RuleTrace((chosen,), ruleset=rules))
    cluster = node("1.36.2-iptables-legacy", "S2-three").cluster_view(tmp_path)
    for first, count in ((by_rules, 0), (packet(GONE, from_conntrack=False), 1), (packet(LIVE), 1)):
        every = f.findings_of([first, packet(GONE)], cluster, f.FakeNode())[1]
        assert len([finding for finding in every if finding.name == "stale_conntrack"]) == count
    other = packet(replace(GONE, dst="10.244.0.98"))
    assert f.findings_of([by_rules, other], cluster, f.FakeNode())[0], "another one that is gone"


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


def udp(after: Endpoints, asked: Endpoints = ORIGINAL) -> Packet:
    hop = NatHop(0, HOST, Hook.PREROUTING, nat=Nat("DNAT", asked, after), rule_trace=DECIDED_EARLIER, from_conntrack=True)
    return f.packet([hop], asked, protocol="UDP")


def of_udp(*ends: str, made: Packet | None = None) -> list[Finding]:
    """The findings with a UDP Service on the NodePort 30285. ends: addresses of its endpoints."""
    service = objects.service("shop/metrics", "172.30.1.40", 8125, 30285, "statsd")
    slice_ = objects.endpoints("shop/metrics", [(f"pod{n}", a, "node-1") for n, a in enumerate(ends)], 8080, "statsd")
    for ports in (service["spec"]["ports"], slice_["ports"]):
        ports[0]["protocol"] = "UDP"
    items = [objects.node("node-1", "192.168.56.10", "10.244.0.0/24"), service, *([slice_] if ends else [])]
    return f.findings_of([made or udp(GONE)], f.view(items, "192.168.56.10"), f.FakeNode())[0]


def test_a_udp_service_that_has_lost_its_last_endpoint() -> None:
    (finding,) = of_udp()
    assert finding.certain and "the endpoints of shop/metrics:statsd are none" in f.proofs(finding, "object")[0]
    assert "leave those of a Service that has lost its last endpoint" in finding.cure
    assert "kubernetes#139629 (1.37 has it)" in finding.cure


def test_a_udp_service_with_other_endpoints() -> None:
    (finding,) = of_udp("10.244.0.12")
    assert finding.cure.endswith(
        "kube-proxy deletes such UDP entries when an endpoint is removed: check its log if it did not."
    )
    assert of_udp("10.244.0.99") == [], "it is an endpoint again"


def test_a_tcp_connection_ends_by_itself(tmp_path: Path) -> None:
    (finding,) = found(packet(GONE), tmp_path)
    assert finding.cure.endswith("kube-proxy deletes no entries of TCP: this one ends with the connection.")


HOSTED = replace(ORIGINAL, dport=30309)


def of_host_port(made: Packet, holder: str = "10.244.0.12", host_port: int = 30309, protocol: str = "UDP") -> list[Finding]:
    """The findings when this pod has the hostPort. holder: its address."""
    pod = objects.pod("shop/dns", holder, "node-1", 5353, host_port)
    pod["spec"]["containers"][0]["ports"][0]["protocol"] = protocol
    view = f.view([objects.node("node-1", "192.168.56.10", "10.244.0.0/24"), pod], "192.168.56.10")
    return f.findings_of([made], view, f.FakeNode())[0]


def test_a_host_port_that_another_pod_has_now() -> None:
    (finding,) = of_host_port(udp(GONE, HOSTED))
    assert finding.cause.startswith(
        "A connection to hostPort 30309 of pod shop/dns still goes to 10.244.0.99:8080, which is no longer a pod: conntrack"
    )
    assert f.proofs(finding, "object") == ["the pod with hostPort 30309 has 10.244.0.12 (Kubernetes API)"]
    assert "portmap deletes such UDP entries when it gives the port to a pod" in finding.cure


@pytest.mark.parametrize(
    ("made", "more"),
    [
        (udp(GONE, HOSTED), {"holder": "10.244.0.99"}),
        (udp(GONE, HOSTED), {"host_port": 30310}),
        (udp(GONE, HOSTED), {"protocol": "TCP"}),
        (udp(replace(GONE, dst="203.0.113.9"), HOSTED), {}),
        (udp(GONE, replace(HOSTED, dst="203.0.113.9")), {}),
    ],
    ids=["the pod is there", "another port", "another protocol", "no address of pods", "no address of the node"],
)
def test_no_host_port_that_moved(made: Packet, more: dict[str, Any]) -> None:
    assert of_host_port(made, **more) == []
