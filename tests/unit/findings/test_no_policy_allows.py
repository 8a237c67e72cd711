# SPDX-License-Identifier: Apache-2.0
"""No policy allows a packet: the policies of the pod, and what each would have needed."""

from __future__ import annotations

import hashlib
from fractions import Fraction

import pytest

from tests.support import findings as f
from tests.support.policies import cluster, pod, policy
from tracer.commands.explain import with_policies
from tracer.kube.attribution import attribute
from tracer.kube.catalog import ClusterView
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.kube import ObjectReference
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Packet
from tracer.model.prediction import PredictedPath
from tracer.rules import save_parser

WEB, CLIENT = pod("shop/web", "10.0.0.1", app="web"), pod("shop/client", "10.0.0.2", app="client")
DENY, ALLOW = policy("shop/deny-all"), policy("shop/allow", {"app": "web"}, ingress=[{"ports": [{"port": 80}]}])
CHAIN = "cali-tw-cali" + hashlib.sha1(b"shop.web").hexdigest()[:11]
CALICO = save_parser.parse(f"""*filter
-A FORWARD -m comment --comment "cali:1" -j cali-to-wl-dispatch
-A cali-to-wl-dispatch -g {CHAIN}
-A {CHAIN} -m comment --comment "cali:2" -m comment --comment "Start of tier default" -j MARK --set-xmark 0x0/0x20000
-A {CHAIN} -j cali-pi-knp/shop/deny-all
-A {CHAIN} -j cali-pi-knp/shop/allow
-A {CHAIN} -m comment --comment "End of tier default. Drop if no policies passed packet" -j DROP
""")
ROUTER = save_parser.parse("""*filter
-A FORWARD -d 10.0.0.1/32 -m comment --comment "rule to jump traffic destined to POD name:web namespace: shop" -j KUBE-POD-FW-A
-A KUBE-POD-FW-A -s 10.0.0.1/32 -m comment --comment "run through nw policy out" -j KUBE-NWPLCY-O
-A KUBE-POD-FW-A -d 10.0.0.1/32 -m comment --comment "run through nw policy deny-all" -j KUBE-NWPLCY-D
-A KUBE-POD-FW-A -m comment --comment "rule to REJECT traffic destined for POD name:web namespace: shop" -j REJECT
""")
ENDS = Endpoints("10.0.0.2", 40000, "10.0.0.1", 8080)


def by_calico(ends: Endpoints = ENDS, number: int = 1) -> Packet:
    hit = f.hit(CALICO, "filter", ("FORWARD", "dispatch"), ("cali-to-wl-dispatch", CHAIN), (CHAIN, "DROP"))
    return f.packet([f.table(CALICO, Hook.FORWARD, "filter", hit, verdict=Verdict.DROP)], ends, number)


def by_router(ends: Endpoints = ENDS) -> Packet:
    hit = f.hit(ROUTER, "filter", ("FORWARD", "-d"), ("KUBE-POD-FW-A", "REJECT"))
    return f.packet([f.table(ROUTER, Hook.FORWARD, "filter", hit, verdict=Verdict.REJECT)], ends)


def found(made: Packet, *objects: object) -> list[Finding]:
    view = cluster(*objects) if objects else ClusterView()  # type: ignore[arg-type]
    return [x for x in f.findings_of([made], view, f.FakeNode())[0] if x.name != "syn_dropped"]


def test_what_each_policy_would_have_needed() -> None:
    (finding,) = found(by_calico(), WEB, CLIENT, DENY, ALLOW)
    assert finding.name == "no_policy_allows" and finding.certain
    assert finding.subject == ObjectReference("Pod", "shop", "web")
    assert finding.cause == (
        "No policy allows tcp 8080 from pod shop/client to pod shop/web: the ingress of shop/web is limited by"
        " NetworkPolicy shop/deny-all, NetworkPolicy shop/allow (Calico)."
    )
    assert f.proofs(finding, "object") == [
        "NetworkPolicy shop/allow: ingress rule 1 allows tcp 80, not tcp 8080 (Kubernetes API)",
        "NetworkPolicy shop/deny-all: it has no ingress rule (Kubernetes API)",
    ]
    assert "a NetworkPolicy that selects shop/web and allows ingress from pod shop/client, tcp 8080" in finding.cure


def test_objects_that_are_newer_than_the_rules() -> None:
    (finding,) = found(by_calico(), WEB, CLIENT, DENY, policy("shop/allow", ingress=[{}]))
    assert finding.cause.endswith("By the objects of the API it is allowed: the rules may be older than the objects.")


def test_without_the_api_the_chains_name_the_policies() -> None:
    (finding,) = found(by_calico())
    assert "limited by NetworkPolicy shop/deny-all, NetworkPolicy shop/allow (Calico)" in finding.cause
    assert all("not known, because its object was not read" in text for text in f.proofs(finding, "object"))


def test_the_direction_in_a_chain_of_kube_router_is_that_of_the_packet() -> None:
    (finding,) = found(by_router(), WEB, CLIENT, DENY)
    assert "the ingress of shop/web is limited by NetworkPolicy shop/deny-all (kube-router)" in finding.cause
    (finding,) = found(by_router(Endpoints("10.0.0.1", 1, "10.0.0.2", 53)), WEB, CLIENT, DENY)
    assert "the egress of shop/web is limited by NetworkPolicy shop/out (kube-router)" in finding.cause


@pytest.mark.parametrize("dport", [8080, 9090])
def test_one_port_of_one_pod_is_one_finding(dport: int) -> None:
    packets = [by_calico(), by_calico(Endpoints("10.0.0.2", 40001, "10.0.0.1", dport), 2)]
    all_found = f.findings_of(packets, cluster(WEB, CLIENT, DENY, ALLOW), f.FakeNode())[1]
    assert [x.packets for x in all_found if x.name == "no_policy_allows"] == ([2] if dport == 8080 else [1, 1])


def test_explain_says_what_each_policy_would_have_needed() -> None:
    view = cluster(WEB, CLIENT, DENY, ALLOW)
    path = PredictedPath(attribute(by_calico(), view), Fraction(1), ())
    assert with_policies(path, view).notes == (
        "NetworkPolicy shop/allow: ingress rule 1 allows tcp 80, not tcp 8080",
        "NetworkPolicy shop/deny-all: it has no ingress rule",
    )
    allowed = f.packet([f.table(CALICO, Hook.FORWARD, "filter", f.policy("FORWARD"))], ENDS)
    assert with_policies(PredictedPath(allowed, Fraction(1), ()), view).notes == ()
