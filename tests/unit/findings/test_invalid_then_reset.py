# SPDX-License-Identifier: Apache-2.0
"""A segment of a pod that conntrack calls INVALID, and the client's reset."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "vagrant"))

from incidents import objects
from tests.support import findings as f
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import Drop, DropHop, HookHop, Hop, Nat, NatHop, Socket, SocketHop
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Packet

POD, AT = "10.244.0.11", Endpoints("10.244.0.11", 8080, f.CLIENT, 41000)
LEFT = HookHop(1, HOST, Hook.POSTROUTING, verdict=Verdict.ACCEPT, in_iface="cni0", out_iface="eth0")
OPEN = SocketHop(2, Netns("pod-a"), socket=Socket(7, "ESTABLISHED", 77, "web"))


def segment(*more: Hop, flags: str = "PSH ACK", untracked: str = "INVALID", ends: Endpoints = AT) -> Packet:
    came = HookHop(0, HOST, Hook.PREROUTING, verdict=Verdict.ACCEPT, in_iface="cni0")
    return replace(f.packet([came, LEFT, *more], ends, 1), tcp_flags=flags, untracked=untracked)


def reset(*more: Hop, number: int = 1, untracked: str = "INVALID", flags: str = "RST") -> Packet:
    made = f.packet([HookHop(0, HOST, Hook.PREROUTING, verdict=Verdict.ACCEPT, in_iface="eth0"), *more], AT.reversed, number)
    return replace(made, tcp_flags=flags, untracked=untracked)


def found(*packets: Packet, liberal: str = "0") -> list[Finding]:
    view = f.view(
        [objects.node("node-1", "192.168.56.10", "10.244.0.0/24"), objects.service("shop/orders", "172.30.1.10", 80, 30306),
         objects.endpoints("shop/orders", [("orders-1", POD, "node-1")], 8080)], "192.168.56.10",
    )  # fmt: skip
    node = f.FakeNode(settings={"net/netfilter/nf_conntrack_tcp_be_liberal": liberal})
    return f.findings_of(list(packets), view, node)[1]


def test_a_reset_that_reaches_the_open_connection() -> None:
    (finding,) = found(segment(), reset(OPEN))
    assert finding.name == "invalid_then_reset" and finding.certain
    assert finding.cause == (
        "A segment of pod shop/orders-1 (node-1) (endpoint of Service shop/orders) left this node with the pod's own address,"
        " because conntrack calls it INVALID and does not translate it back: the client 192.168.56.1 does not know that address"
        " and answered with a reset, which closed the open connection."
    )
    assert f.proofs(finding, "setting") == ["nf_conntrack_tcp_be_liberal = 0 (/proc/sys)"]
    assert "`sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1`" in finding.cure


def test_a_reset_that_reaches_no_open_connection_may_do_no_harm() -> None:
    (finding,) = found(segment(), reset(LEFT))
    assert not finding.certain


def test_a_reset_that_tcp_does_not_accept_does_no_harm() -> None:
    dropped = DropHop(3, Netns("pod-a"), drop=Drop("TCP_INVALID_SEQUENCE", "tcp_validate_incoming"))
    (finding,) = found(segment(), reset(OPEN, dropped))
    assert not finding.certain and finding.cause.endswith("answered with a reset.")


def test_with_liberal_tracking_the_setting_is_no_cure() -> None:
    (finding,) = found(segment(), reset(OPEN), liberal="1")
    assert "Drop INVALID packets in FORWARD" in finding.cure and "sysctl -w" not in finding.cure


BACK = NatHop(1, HOST, Hook.POSTROUTING, nat=Nat("reverse DNAT", AT, replace(AT, src="192.168.56.10", sport=30306)))


@pytest.mark.parametrize(
    "packets",
    [
        (segment(),),
        (reset(OPEN),),
        (reset(OPEN), segment()),
        (segment(), reset(OPEN, number=4)),
        (segment(), reset(OPEN, untracked="")),
        (segment(), reset(OPEN, flags="ACK")),
        (segment(untracked=""), reset(OPEN)),
        (segment(BACK), reset(OPEN)),
        (replace(segment(), hops=segment().hops[:1]), reset(OPEN)),
        (segment(ends=replace(AT, sport=9999)), reset(OPEN)),
    ],
    ids=["no reset", "no segment", "the reset was first", "3 s later", "of a tracked connection", "no reset but an ACK",
         "tracked", "translated", "did not leave", "of no endpoint"],
)  # fmt: skip
def test_no_finding(packets: tuple[Packet, ...]) -> None:
    assert [one.name for one in found(*packets) if one.name == "invalid_then_reset"] == []
