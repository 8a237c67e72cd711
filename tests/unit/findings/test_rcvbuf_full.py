# SPDX-License-Identifier: Apache-2.0
"""A UDP socket whose receive buffer is full."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import findings as f
from tracer.kube.catalog import ClusterView
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import Drop, DropHop, Hop, Nat, NatHop, Socket, SocketHop
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook
from tracer.model.packet import Packet

ENDS = Endpoints(f.CLIENT, 40000, "192.168.56.10", 30053)
POD = Netns("pod-a")


def packet(netns: Netns = POD, reason: str = "SOCKET_RCVBUFF", pid: int = 219, protocol: str = "UDP") -> Packet:
    after = Endpoints(f.CLIENT, 40000, "10.244.0.11", 5353)
    hops: list[Hop] = [
        NatHop(0, HOST, Hook.PREROUTING, nat=Nat("DNAT", ENDS, after)),
        SocketHop(1, netns, socket=Socket(77, "UNCONNECTED", pid, "coredns" if pid else "")),
        DropHop(2, netns, drop=Drop(reason, "udp_queue_rcv_one_skb")),
    ]
    return replace(f.packet(hops, ENDS), protocol=protocol, tcp_flags="")


def found(*packets: Packet) -> list[Finding]:
    return f.findings_of(list(packets), ClusterView(), f.FakeNode())[1]


def test_the_process_and_its_socket_are_named() -> None:
    (finding,) = found(packet())
    assert finding.certain and finding.name == "rcvbuf_full"
    assert finding.cause.startswith("coredns (pid 219) reads too slowly from its UDP socket 10.244.0.11:5353 in pod-a: ")
    full = "udp 10.244.0.11:5353 in pod-a: its receive buffer was full (SOCKET_RCVBUFF)"
    assert f.proofs(finding, "socket") == [f"{full} (observed)"]
    assert finding.check.startswith("`nsenter -t 219 -n ss -uamn 'sport = :5353'` ")
    assert "`nsenter -t 219 -n nstat -az UdpRcvbufErrors`" in finding.check


def test_in_the_nodes_namespace_no_other_one_is_entered() -> None:
    (finding,) = found(packet(HOST))
    assert "`ss -uamn 'sport = :5353'`" in finding.check and "nsenter" not in finding.check


def test_a_process_that_is_not_known_is_not_named() -> None:
    (finding,) = found(packet(pid=0))
    assert finding.cause.startswith("The process of the socket reads too slowly") and "nsenter" not in finding.check


def test_all_datagrams_of_a_socket_are_one_finding() -> None:
    (finding,) = found(packet(), replace(packet(), identity=2, number=2))
    assert finding.packets == 2


@pytest.mark.parametrize(
    "other", [packet(reason="PROTO_MEM"), packet(reason="UDP_CSUM"), packet(reason=""), packet(protocol="TCP")]
)
def test_other_drops_are_no_such_finding(other: Packet) -> None:
    assert [each for each in found(other) if each.name == "rcvbuf_full"] == []
