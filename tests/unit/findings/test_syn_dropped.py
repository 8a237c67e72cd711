# SPDX-License-Identifier: Apache-2.0
"""SYNs dropped at their listener: the cause, the count, and no finding where they were answered."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.support import findings as f
from tests.support.syns import decision_detail
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.store import ObjectStore
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import Drop, DropHop, Handshake, HandshakeHop, Hop, Nat, NatHop, Socket, SocketHop
from tracer.model.kube import ObjectReference
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook
from tracer.model.packet import Packet

FULL, ROOM = Handshake("SYN", False, 129, 128, 0), Handshake("SYN", True, 3, 128, 1)
ORIGINAL, INSIDE = (Endpoints("100.122.64.147", 20000, *end) for end in (("192.168.1.1", 30285), ("10.128.0.74", 8081)))


def syn(shake: Handshake | None, number: int = 1, reason: str = "", flags: str = "SYN") -> Packet:
    hops: list[Hop] = [
        NatHop(0, HOST, Hook.PREROUTING, nat=Nat("DNAT", ORIGINAL, INSIDE)),
        NatHop(1, HOST, Hook.POSTROUTING, nat=Nat("MASQUERADE", INSIDE, Endpoints("10.128.0.1", 9, "10.128.0.74", 8081))),
        SocketHop(2, Netns("http-proxy"), socket=Socket(48213, "LISTEN", 4242, "haproxy")),
    ]
    if shake:
        hops.append(HandshakeHop(3, Netns("http-proxy"), handshake=shake))
    if reason:
        hops.append(DropHop(4, Netns("http-proxy"), drop=Drop(reason, "tcp_conn_request")))
    return replace(f.packet(hops, ORIGINAL, number), tcp_flags=flags)


def found(packets: list[Packet], on: f.FakeNode | None = None) -> tuple[list[Finding], list[Finding]]:
    return f.findings_of(packets, ClusterView(), on or f.FakeNode())


def test_a_full_accept_queue() -> None:
    on = f.FakeNode(counted={"ListenOverflows": 280, "ListenDrops": 280}, settings={"net/core/somaxconn": "128"})
    reported, (at_the_end,) = found([syn(ROOM), syn(FULL, 2), syn(FULL, 3)], on)
    (first,) = reported
    assert first.cause == (
        "haproxy (pid 4242) does not accept connections as fast as they come: its accept queue is full (129 are"
        " waiting, 128 are"
        " allowed), and the kernel drops SYNs to 10.128.0.74:8081 without an answer."
    )
    assert f.proofs(at_the_end, "counter") == [
        "2 dropped, 3 SYNs seen in 2.0 s; of 3 to 192.168.1.1:30285, 2 dropped (observed)",
        "since boot, in its namespace: ListenOverflows 280, ListenDrops 280 (/proc/4242/net/netstat)",
    ]
    assert f.proofs(at_the_end, "setting") == ["net.core.somaxconn = 128 (/proc/sys)"]
    assert at_the_end.check.startswith("`nsenter -t 4242 -n ss -ltn 'sport = :8081'")


def test_a_full_accept_queue_at_the_last_ack() -> None:
    last = replace(syn(Handshake("ACK", False, 129, 128, 0), 2, flags="ACK"), seq=1)
    reported, _ = found([syn(ROOM), last])
    assert "drops connections to 10.128.0.74:8081" in reported[0].cause


@pytest.mark.parametrize("reason", ["TCP_RFC7323_PAWS", "TCP_RFC7323_TW_PAWS"])
def test_old_timestamps_by_the_drops_reason(reason: str) -> None:
    (finding,), _ = found([syn(None, reason=reason)])
    assert "because their TCP timestamps are older" in finding.cause and "TIME_WAIT" in finding.cause and finding.certain
    assert "MASQUERADE 100.122.64.147 -> 10.128.0.1 (observed)" in f.proofs(finding, "packet")


def test_a_sequence_number_that_is_not_beyond_time_wait() -> None:
    dropped = syn(None, reason="NOT_SPECIFIED")
    hit = decision_detail("time-wait", 3, Netns("http-proxy"), answer="ack", state="TIME_WAIT", tsval=9, ts_recent=9)
    (finding,), _ = found([replace(dropped, hops=(*dropped.hops[:-1], hit, dropped.hops[-1]))])
    assert finding.certain and "neither their timestamps nor their sequence numbers are newer" in finding.cause
    assert "older" not in finding.cause and finding.cure.startswith("Give the SNAT more addresses or ports")
    assert "MASQUERADE 100.122.64.147 -> 10.128.0.1 (observed)" in f.proofs(finding, "packet")


def test_tw_recycle() -> None:
    on = f.FakeNode(settings={"net/ipv4/tcp_tw_recycle": "1"})
    reported, (finding,) = found([syn(Handshake("SYN", False, 0, 128, 0))], on)
    assert not reported and "most likely because their TCP timestamps" in finding.cause
    assert "net.ipv4.tcp_tw_recycle is on" in finding.cause
    assert finding.cure.startswith("`nsenter -t 4242 -n sysctl -w net.ipv4.tcp_tw_recycle=0`"), (
        "the setting of the pod's namespace"
    )


@pytest.mark.parametrize(("cookies", "certain"), [("0", True), ("1", False), ("", False)])
def test_a_full_syn_queue_only_without_cookies(cookies: str, certain: bool) -> None:
    figures = {"accept_queue": 0, "accept_limit": 16, "syn_queue": 16, "syncookies": int(cookies or 1)}
    dropped = syn(Handshake("SYN", False, 0, 16, 16))
    detail = decision_detail("listener", 3, Netns("http-proxy"), **figures)
    reported, (at_the_end,) = found([replace(dropped, hops=(*dropped.hops[:3], detail, *dropped.hops[3:]))])
    assert bool(reported) == certain == at_the_end.certain
    assert ("SYN queue" in at_the_end.cause) == certain


def test_no_reason_is_no_certainty() -> None:
    reported, (at_the_end,) = found([syn(Handshake("SYN", False, 0, 128, 0))])
    assert not reported and "no reason that this tracer knows" in at_the_end.cause


def test_an_accepted_or_unknown_handshake_is_no_finding() -> None:
    assert found([syn(ROOM), syn(Handshake("SYN", None, 0, 128, 0)), syn(None)]) == ([], [])


def test_a_half_open_connection_that_gets_its_syn_again_is_no_finding() -> None:
    assert found([syn(Handshake("request", False, 0, 128, 1))]) == ([], [])


def test_two_listeners_are_two_causes() -> None:
    other = syn(FULL, 2)
    other = replace(other, hops=(*other.hops[:2], *(replace(h, netns=Netns("other")) for h in other.hops[2:])))
    assert len(found([syn(FULL), other])[0]) == 2


ENDS = {"kind": "EndpointSlice", "metadata": {"namespace": "shop", "name": "checkout-x",
        "labels": {"kubernetes.io/service-name": "checkout"}}, "ports": [{"name": "tls", "port": 8081, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.128.0.74"], "conditions": {"ready": True}, "nodeName": "node-1",
                       "targetRef": {"kind": "Pod", "namespace": "shop", "name": "checkout-0"}}]}  # fmt: skip
SERVICE = {"kind": "Service", "metadata": {"namespace": "shop", "name": "checkout"},
           "spec": {"clusterIPs": ["172.30.5.109"], "ports": [{"name": "tls", "port": 443, "nodePort": 30285}]}}  # fmt: skip


def cluster(*more: object) -> ClusterView:
    store = ObjectStore("node-1")
    store.load(json.loads(json.dumps([ENDS, SERVICE, *more])))
    return ClusterView(store, CniCache(()), frozenset({"192.168.1.1"}))


@pytest.mark.parametrize("shake", [FULL, Handshake("SYN", False, 0, 16, 16)], ids=["accept queue", "SYN queue"])
def test_a_full_queue_names_pod_and_service(shake: Handshake) -> None:
    made = syn(shake)
    figures = {"accept_queue": shake.accept_queue, "accept_limit": shake.accept_limit, "syn_queue": shake.syn_queue}
    detail = decision_detail("listener", 3, Netns("http-proxy"), **figures, syncookies=0)
    made = replace(made, hops=(*made.hops[:3], detail, *made.hops[3:]))
    (finding,), _ = f.findings_of([made], cluster(), f.FakeNode())
    assert "haproxy (pid 4242) of pod shop/checkout-0" in finding.cause
    assert finding.subject == ObjectReference("Pod", "shop", "checkout-0")
    assert "SYNs to 10.128.0.74:8081 (Service shop/checkout:tls)" in finding.cause
    assert f.proofs(finding, "object") == [
        "10.128.0.74 is pod shop/checkout-0 (node-1); asked for as Service shop/checkout:tls, NodePort 30285 (Kubernetes API)"
    ]


def test_without_objects_neither_pod_nor_service_is_named() -> None:
    (finding,), _ = found([syn(FULL)])
    assert "pod" not in finding.cause and "Service" not in finding.cause and not f.proofs(finding, "object")
