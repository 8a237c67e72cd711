# SPDX-License-Identifier: Apache-2.0
"""A Service sends a pod's request to the same pod."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.support import findings as f
from tests.support.nodes import node
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import HookHop, Nat, NatHop
from tracer.model.kube import ObjectReference
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Packet

ORIGINAL = Endpoints("10.244.0.11", 40000, "172.30.253.123", 8080)
ITSELF = replace(ORIGINAL, dst="10.244.0.11")


def packet(after: Endpoints = ITSELF, masquerade: bool = False, left: bool = True) -> Packet:
    rules = node("1.36.2-iptables-legacy", "S2-three").iptables()
    hit = f.hit(rules, "nat", ("PREROUTING", "KUBE-SERVICES"), ("KUBE-SERVICES", "KUBE-SVC-5DZI2HW7VHZLUOJ5"),
                  ("KUBE-SVC-5DZI2HW7VHZLUOJ5", "KUBE-SEP"), ("KUBE-SEP-66PQAUDBO7BH47NT", "DNAT"))  # fmt: skip
    hops = [f.nat(rules, Hook.PREROUTING, "DNAT", ORIGINAL, after, hit)]
    if masquerade:
        hops.append(NatHop(0, HOST, Hook.POSTROUTING, nat=Nat("MASQUERADE", after, replace(after, src="10.244.0.1"))))
    if left:
        hops.append(HookHop(1, HOST, Hook.POSTROUTING, verdict=Verdict.ACCEPT, out_iface="cni0", in_iface="cni0"))
    return f.packet(hops, ORIGINAL)


def found(made: Packet, folder: Path) -> list[Finding]:
    return f.findings_of([made], node("1.36.2-iptables-legacy", "S2-three").cluster_view(folder), f.FakeNode())[1]


def test_without_masquerade(tmp_path: Path) -> None:
    (finding,) = found(packet(), tmp_path)
    assert finding.name == "hairpin_without_masquerade" and finding.certain
    assert finding.subject == ObjectReference("Pod", "default", "http-proxy-a")
    assert finding.cause.startswith(
        "Pod default/http-proxy-a (node-1) connects to 172.30.253.123:8080 (Service default/http-proxy) and is sent"
    )
    assert "KUBE-SEP-66PQAUDBO7BH47NT" in f.proofs(finding, "rule")[0]


def test_masqueraded_elsewhere_or_incomplete_is_no_finding(tmp_path: Path) -> None:
    other = packet(replace(ITSELF, dst="10.244.0.12"))
    for made in (packet(masquerade=True), other, packet(left=False), replace(packet(), complete=False)):
        assert found(made, tmp_path) == []
