# SPDX-License-Identifier: Apache-2.0
"""Packets that are longer than the MTU of their path."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import findings as f
from tracer.kube.catalog import ClusterView
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import Drop, DropHop, HookHop, Hop
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Packet

ENDS = Endpoints("10.244.0.11", 40000, "10.244.3.7", 8080)


def packet(reason: str, function: str) -> Packet:
    made = f.packet([HookHop(0, HOST, Hook.FORWARD, verdict=Verdict.ACCEPT, in_iface="cni0", out_iface="flannel.1"),
                     DropHop(1, HOST, drop=Drop(reason, function))], ENDS)  # fmt: skip
    return replace(made, length=1500)


def found(made: Packet) -> list[Finding]:
    return f.findings_of([made], ClusterView(), f.FakeNode(mtus={"flannel.1": 1450}))[1]


@pytest.mark.parametrize(
    ("reason", "function"), [("PKT_TOO_BIG", "ip_forward"), ("", "ip_fragment"), ("NOT_SPECIFIED", "ip6_fragment")]
)
def test_too_long(reason: str, function: str) -> None:
    (finding,) = found(packet(reason, function))
    assert (
        finding.certain
        and "A packet of 1500 bytes from 10.244.0.11 to 10.244.3.7 is too long for flannel.1, whose MTU is 1450,"
        in finding.cause
    )
    assert f.proofs(finding, "setting") == ["MTU of flannel.1 is 1450 (/sys/class/net)"]


@pytest.mark.parametrize(
    ("reason", "function"), [("NO_SOCKET", "tcp_v4_rcv"), ("", "ip_forward"), ("NETFILTER_DROP", "nf_hook_slow")]
)
def test_other_drops(reason: str, function: str) -> None:
    assert found(packet(reason, function)) == []


def test_a_forwarded_packet_is_dropped_before_a_hook_reports_its_interface() -> None:
    """The client sent the packet by eth0, which is not the interface with the small MTU."""
    hops: list[Hop] = [
        HookHop(0, Netns("client"), Hook.OUTPUT, verdict=Verdict.ACCEPT, out_iface="eth0"),
        HookHop(1, HOST, Hook.PREROUTING, verdict=Verdict.ACCEPT, in_iface="eth0"),
        DropHop(2, HOST, drop=Drop("PKT_TOO_BIG", "ip_forward")),
    ]
    on = f.FakeNode(mtus={"eth0": 1500, "cni0": 1000}, ways={ENDS.dst: "cni0"})
    (finding,) = f.findings_of([f.packet(hops, ENDS)], ClusterView(), on)[1]
    assert "is too long for cni0, whose MTU is 1000, and" in finding.cause


def test_another_namespaces_interface_is_not_measured_here() -> None:
    hops: list[Hop] = [
        HookHop(0, Netns("pod-a"), Hook.OUTPUT, verdict=Verdict.ACCEPT, out_iface="eth0"),
        DropHop(1, Netns("pod-a"), drop=Drop("PKT_TOO_BIG", "ip_fragment")),
    ]
    (finding,) = f.findings_of([f.packet(hops, ENDS)], ClusterView(), f.FakeNode(mtus={"eth0": 1500}))[1]
    assert "is too long for eth0 and must not be fragmented" in finding.cause and not f.proofs(finding, "setting")
