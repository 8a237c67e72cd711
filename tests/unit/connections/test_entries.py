# SPDX-License-Identifier: Apache-2.0
"""A packet as an entry of a timeline: which hops become stages, and their texts."""

from __future__ import annotations

import pytest

from tests.support.syns import AFTER_DNAT, INSIDE, MS, REQUESTED, at_listener, decision_detail, packet, syn, way
from tracer.connections import entries
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.hop import (
    Drop,
    DropHop,
    HookHop,
    Hop,
    IpvsDecision,
    IpvsNatHop,
    IpvsRefusalHop,
    Nat,
    NatHop,
    Socket,
    SocketHop,
    TableHop,
)
from tracer.model.kube import Owner
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Flow, Packet


def texts(*hops: Hop) -> list[str]:
    return [s.text for s in entries.make_entry(packet(REQUESTED, "SYN", list(hops)), "->").stages]


def test_a_hop_that_only_accepts_is_no_stage() -> None:
    assert texts(way()[0], way()[3], decision_detail("listener", 9, HOST, accept_queue=0)) == []


def test_rewrites() -> None:
    owner = Owner("Service", "default", "web", detail="NodePort 30285")
    derived = NatHop(1, HOST, Hook.PREROUTING, nat=Nat("DNAT", REQUESTED, AFTER_DNAT), evidence=Evidence.DERIVED, owner=owner)
    assert texts(way()[0], derived) == [
        "PREROUTING DNAT 192.168.56.10:30285 -> 10.244.0.11:8080 (derived)  Service default/web, NodePort 30285"
    ]
    both = Nat("rewritten", REQUESTED, Endpoints("10.0.0.1", 1, "fd00::1", 2))
    assert entries.format_rewrite(both) == "192.168.56.1:40812 -> 10.0.0.1:1 and 192.168.56.10:30285 -> [fd00::1]:2"
    assert entries.format_rewrite(Nat("DNAT", Endpoints("a", 0, "b", 0), Endpoints("a", 0, "c", 0))) == "b -> c"


def test_a_packet_that_comes_into_another_namespace() -> None:
    assert texts(way()[0], HookHop(5, Netns("pod-a"), Hook.INPUT, verdict=Verdict.ACCEPT, in_iface="eth0")) == [
        "in pod-a, by eth0"
    ]


@pytest.mark.parametrize(
    ("hop", "text"),
    [
        (SocketHop(1, HOST, socket=Socket(7, "", 9, "coredns")), "socket, coredns (pid 9)"),
        (SocketHop(1, HOST, socket=Socket(7, "LISTEN", 0, "")), "socket LISTEN"),
        (DropHop(1, HOST, drop=Drop("", "")), "drop without a reason in an unknown function"),
        (TableHop(1, HOST, Hook.INPUT, table="filter", verdict=Verdict.REJECT, reject="x"), "INPUT filter REJECT with x"),
        (decision_detail("neighbour", 1, HOST), "waits for the next hop's link address"),
        (decision_detail("reset", 1, HOST, reason=1), "answered with a reset, for no socket takes it"),
        (decision_detail("reset", 1, HOST, reason=9, state="CLOSE"), "answered with a reset, by a socket in CLOSE"),
        (
            decision_detail("queue-answer", 1, HOST, queue=7, verdict="DROP", by="process", pid=9, process="x", waited_ns=2),
            "queue 7 pid 9 x answered DROP after 0.00 ms",
        ),
        (decision_detail("queue-refused", 1, HOST, queue=7, errno=3, by="no process"), "queue 7 no process listens"),
        (decision_detail("connect", 1, HOST, asked="10.96.0.10:443"), "its socket asked for 10.96.0.10:443"),
        (decision_detail("connect", 1, HOST, asked="[::1]:1", changed="by x"), "its socket asked for [::1]:1, changed by x"),
        (decision_detail("lookup", 1, HOST, socket="0.0.0.0:8080", chosen="by x"), "socket 0.0.0.0:8080 chosen by x"),
        (NatHop(1, HOST, Hook.OUTPUT, nat=Nat("DNAT", REQUESTED, AFTER_DNAT), clone=True),
         "OUTPUT DNAT 192.168.56.10:30285 -> 10.244.0.11:8080 (copy)"),
    ],
)  # fmt: skip
def test_text_of_a_stage(hop: Hop, text: str) -> None:
    assert texts(way()[0], hop) == [text]


def test_a_packet_that_a_closed_socket_frees_is_no_drop() -> None:
    assert texts(way()[0], DropHop(1, HOST, drop=Drop("TCP_RESET", "tcp_v4_rcv", after_socket=True))) == []


def test_end_of_an_entry() -> None:
    good, lost = entries.make_entry(syn(*at_listener(True)), "->"), entries.make_entry(syn(complete=False), "->")
    assert (good.end, good.bad) == ("SYN answered by pid 4242 nginx in pod-a", False)
    assert lost.end == "forwarded to cni0 (incomplete)"
    assert entries.make_entry(syn(*at_listener(False)), "->").bad


def test_icmp_errors_by_name() -> None:
    flow = Flow(REQUESTED, INSIDE.reversed, "RELATED", True, 0)
    hops = (HookHop(MS, Netns("pod-a"), Hook.OUTPUT),)
    ends = Endpoints("10.0.0.1", 0, "10.0.0.2", 0)
    error = Packet(1, 0, Netns("pod-a"), "", "IPv4", "ICMP", ends, flow=flow, hops=hops, icmp=(3, 4))
    assert entries.make_entry(error, "!").text == "ICMP fragmentation needed, 0 B, sent by pod-a"


def test_ipvs_is_named() -> None:
    nat, server = (
        Nat("DNAT", REQUESTED, AFTER_DNAT),
        IpvsDecision("192.168.56.10", 30285, "tcp", "rr", real="10.244.0.11", real_port=8080),
    )
    assert texts(way()[0], IpvsNatHop(1, HOST, Hook.INPUT, nat=nat, decision=server)) == [
        "INPUT IPVS (rr) 192.168.56.10:30285 -> 10.244.0.11:8080"
    ]
    back = IpvsNatHop(
        1, HOST, Hook.FORWARD, nat=Nat("reverse DNAT", AFTER_DNAT.reversed, REQUESTED.reversed), decision=IpvsDecision()
    )
    assert texts(way()[0], back) == ["FORWARD reverse IPVS 10.244.0.11:8080 -> 192.168.56.10:30285"]
    none = IpvsRefusalHop(
        1, HOST, Hook.INPUT, verdict=Verdict.REJECT, reject="icmp-port-unreachable", decision=IpvsDecision("172.30.0.10", 53)
    )
    assert texts(way()[0], none) == ["INPUT IPVS has no real server for it: REJECT with icmp-port-unreachable"]


def test_a_copy_has_its_own_path() -> None:
    there = SocketHop(2, Netns("pod-b"), in_iface="eth0", socket=Socket(7, "", 9, "tap"), clone=True)
    here = HookHop(3, HOST, Hook.FORWARD, verdict=Verdict.ACCEPT)
    assert texts(way()[0], there, here) == ["in pod-b, by eth0 (copy)", "socket, tap (pid 9) (copy)"]


def test_a_tables_decision_is_shown_once() -> None:
    table = TableHop(1, HOST, Hook.INPUT, table="filter", verdict=Verdict.DROP)
    freed, hook = (
        DropHop(2, HOST, drop=Drop("NETFILTER_DROP", "nf_hook_slow")),
        HookHop(3, HOST, Hook.INPUT, verdict=Verdict.DROP),
    )
    assert texts(way()[0], table, freed, hook) == ["INPUT filter DROP"]
    assert texts(way()[0], freed, hook) == ["drop NETFILTER_DROP in nf_hook_slow", "INPUT hook DROP"], "no other hop shows it"
    purged = DropHop(4, Netns("client"), drop=Drop("QUEUE_PURGE", "skb_queue_purge_reason"), clone=True)
    assert texts(way()[0], purged) == [], "a copy that waited to be read"
