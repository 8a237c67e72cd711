# SPDX-License-Identifier: Apache-2.0
"""Packets as on a Kubernetes node, for the tests of the output formats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

from tracer.model.bpf_program import AttachedProgram, AttachPoint, ProgramAction
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.hop import (
    Drop,
    Handshake,
    Hop,
    HopKind,
    IpvsDecision,
    IpvsNatHop,
    IpvsRefusalHop,
    Nat,
    Redirect,
    RedirectHelper,
    RewriteHop,
    Socket,
)
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import decode_hook, decode_verdict
from tracer.model.packet import Flow, Outcome, Packet
from tracer.util.frozen import evolve

EPOCH = 1_769_868_202_118_204_511  # 2026-01-31T14:03:22.118204511Z
BOOT = 5_000_000_000_000
CLIENT, NODE, POD = ("192.168.56.1", 40812), ("192.168.56.10", 30285), ("10.244.0.11", 8080)
GATEWAY = ("10.244.0.1", 23711)
REQUESTED, ANSWERED = Endpoints(*CLIENT, *NODE), Endpoints(*POD, *GATEWAY)
STATUS = Flow(REQUESTED, ANSWERED, "NEW", False, 0)


def hop(us: float, what: str, hook: str = "", netns: str = HOST, **more: Any) -> Hop:
    """A hop `us` microseconds after the packet's first. more: fields of its kind; a verdict by its name."""
    if what == HopKind.IPVS:
        kind: type[Hop] = IpvsNatHop if "nat" in more else IpvsRefusalHop
    else:
        (kind,) = (each for each in get_args(Hop) if each.kind == what)
    return kind(BOOT + int(us * 1000), Netns(netns), decode_hook(hook), **_decoded(more))


def _decoded(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: decode_verdict(value) if name == "verdict" else value for name, value in changes.items()}


def with_hop(packet: Packet, at: int, **changes: Any) -> Packet:
    """The packet with other values in the fields of one hop."""
    hops = list(packet.hops)
    hops[at] = evolve(hops[at], **_decoded(changes))
    return replace(packet, hops=tuple(hops))


def with_hops(packet: Packet, *more: Hop) -> Packet:
    """The packet with more hops at its end."""
    return replace(packet, hops=(*packet.hops, *more))


def node_port() -> Packet:
    """A SYN to a NodePort: DNAT to a pod, MASQUERADE, an answer from the pod's listener."""
    translated = Endpoints(*CLIENT, *POD)
    hops = [
        hop(0, "table", "PREROUTING", table="raw", verdict="ACCEPT", in_iface="eth0"),
        hop(11, "table", "PREROUTING", table="nat", verdict="ACCEPT", in_iface="eth0", mark=0x4000),
        hop(14, "nat", "PREROUTING", nat=Nat("DNAT", REQUESTED, translated)),
        hop(15, "hook", "PREROUTING", verdict="ACCEPT", in_iface="eth0"),
        hop(22, "table", "FORWARD", table="filter", verdict="ACCEPT", in_iface="eth0", out_iface="cni0", mark=0x4000),
        hop(24, "hook", "FORWARD", verdict="ACCEPT", in_iface="eth0", out_iface="cni0"),
        hop(31, "nat", "POSTROUTING", nat=Nat("MASQUERADE", translated, Endpoints(*GATEWAY, *POD))),
        hop(33, "hook", "POSTROUTING", verdict="ACCEPT", out_iface="cni0"),
        hop(52, "hook", "INPUT", "pod http-proxy", verdict="ACCEPT", in_iface="eth0"),
        hop(58, "socket", netns="pod http-proxy", socket=Socket(48213, "LISTEN", 4242, "nginx")),
        hop(120, "handshake", netns="pod http-proxy", handshake=Handshake("SYN", True, 0, 128, 1)),
    ]
    return Packet(
        (7 << 8) | 1, EPOCH, HOST, "eth0", "IPv4", "TCP", REQUESTED, "SYN", 60, 1_000_001, STATUS, tuple(hops),
        "SYN answered by pid 4242 nginx in pod http-proxy", Outcome.DELIVERED, True, 1,
    )  # fmt: skip


def node_port_reply() -> Packet:
    """The SYN ACK that answers node_port(), back through both translations."""
    half = Endpoints(*POD, *CLIENT)
    hops = [
        hop(0, "hook", "OUTPUT", "pod http-proxy", verdict="ACCEPT", out_iface="eth0"),
        hop(40, "nat", "PREROUTING", nat=Nat("reverse MASQUERADE", ANSWERED, half), evidence=Evidence.DERIVED),
        hop(61, "nat", "POSTROUTING", nat=Nat("reverse DNAT", half, REQUESTED.reversed)),
        hop(64, "hook", "POSTROUTING", verdict="ACCEPT", out_iface="eth0"),
    ]
    flow = Flow(REQUESTED, ANSWERED, "ESTABLISHED", True, 0)
    return Packet(
        9 << 8, EPOCH + 300_000, Netns("pod http-proxy"), "eth0", "IPv4", "TCP", ANSWERED, "SYN ACK", 60, 77, flow, tuple(hops),
        "forwarded to eth0 in node", Outcome.FORWARDED, True, 2,
    )  # fmt: skip


def ipvs() -> list[Packet]:
    """A SYN to a NodePort that IPVS sends to a pod; a later packet of that connection; a SYN without real servers."""
    server = IpvsDecision("192.168.56.10", 30285, "tcp", "rr")
    real = replace(server, persistent=True, real="10.244.0.11", real_port=8080, chosen="now")
    nat = Nat("DNAT", REQUESTED, Endpoints(*CLIENT, *POD))
    first = hop(14, "ipvs", "INPUT", decision=real, nat=nat)
    later = hop(14, "ipvs", "INPUT", decision=replace(real, chosen="earlier", evidence=Evidence.DERIVED), nat=nat)
    refused = hop(14, "ipvs", "INPUT", decision=server, verdict="REJECT", reject="icmp-port-unreachable")
    found = []
    for number, what in enumerate((first, later, refused), 1):
        hops = [hop(0, "hook", "PREROUTING", verdict="ACCEPT", in_iface="eth0"), what]
        head = (number << 8, EPOCH, HOST, "eth0", "IPv4", "TCP", REQUESTED, "SYN", 60, number, STATUS, tuple(hops))
        end = (
            ("forwarded to cni0", Outcome.FORWARDED) if isinstance(what, RewriteHop) else ("REJECTED by IPVS", Outcome.REJECTED)
        )
        found.append(Packet(*head, *end))
    return found


def rejected() -> Packet:
    """A Service without endpoints: kube-proxy's REJECT, over IPv6, by nftables."""
    ends = Endpoints("fd00:10:244::17", 51514, "fd00:10:96::a3f1", 80)
    hops = [
        hop(0, "chain", "OUTPUT", table="ip6 kube-proxy", chain="filter-output", verdict="REJECT",
            reject="icmp6-port-unreachable", out_iface="eth0"),
        hop(6, "hook", "OUTPUT", verdict="DROP", out_iface="eth0"),
        hop(9, "drop", drop=Drop("NETFILTER_DROP", "nf_hook_slow")),
    ]  # fmt: skip
    return Packet(
        11 << 8, EPOCH + 1_000_000_000, HOST, "", "IPv6", "TCP", ends, "SYN", 80, 5, None, tuple(hops),
        "REJECTED in ip6 kube-proxy/filter-output with icmp6-port-unreachable", Outcome.REJECTED, True, 3,
    )  # fmt: skip


def dropped_by_program(*candidates: AttachedProgram) -> Packet:
    """A SYN that an eBPF program of tc dropped; several candidates: it is not known which."""
    doubt = "" if len(candidates) == 1 else "which of them is not known"
    known = ProgramAction(AttachPoint.TC_INGRESS, "eth0", candidates, doubt)
    drop = hop(0, "drop", in_iface="eth0", verdict="DROP", drop=Drop("TC_INGRESS", "__netif_receive_skb_core", program=known))
    verdict = f"DROPPED {known.text}"
    return replace(full_queue(), hops=(drop,), flow=None, verdict=verdict, outcome=Outcome.DROPPED, complete=True)


def changed_by_program(*candidates: AttachedProgram, is_observed: bool = False) -> Packet:
    """A packet that programs may have rewritten, and then redirected."""
    doubt = {0: "none was attached there", 1: ""}.get(len(candidates), "which of them is not known")
    known = ProgramAction(AttachPoint.TC_INGRESS, "eth0", candidates, doubt, is_observed=is_observed)
    nat = Nat("rewritten", Endpoints(*CLIENT, *NODE), Endpoints(*CLIENT, *POD))
    redirect = Redirect("eth1", RedirectHelper.PLAIN, True, known)
    hops = (hop(0, "nat", nat=nat, program=known), hop(1, "redirect", in_iface="eth0", redirect=redirect))
    return replace(full_queue(), hops=hops, flow=None, verdict=f"redirected {redirect.text}", outcome=Outcome.UNKNOWN)


def full_queue() -> Packet:
    """A SYN that a listener with a full accept queue refuses; some of its events were lost."""
    hops = [
        hop(0, "hook", "INPUT", verdict="ACCEPT", in_iface="eth0"),
        hop(4, "socket", socket=Socket(48213, "LISTEN", 0, "")),
        hop(5, "handshake", handshake=Handshake("SYN", False, 129, 128, 3)),
        hop(1_203_450, "drop", drop=Drop("", "tcp_conn_request")),
    ]
    return Packet(
        12 << 8, EPOCH + 2_000_000_000, HOST, "eth0", "IPv4", "TCP", Endpoints(*CLIENT, "192.168.56.10", 6443),
        "SYN", 60, 6, Flow(REQUESTED, REQUESTED.reversed, "NEW", False, 3), tuple(hops),
        "SYN dropped: accept queue 129/128", Outcome.DROPPED, False, 4,
    )  # fmt: skip


def no_socket() -> Packet:
    """A datagram to a port without a listener."""
    hops = [
        hop(0, "hook", "INPUT", verdict="ACCEPT", in_iface="eth0"),
        hop(8.4, "drop", drop=Drop("NO_SOCKET", "__udp4_lib_rcv"), clone=True),
    ]
    return Packet(
        13 << 8, EPOCH + 3_000_000_000, HOST, "eth0", "IPv4", "UDP", Endpoints(*CLIENT, "192.168.56.10", 53),
        "", 61, 0, None, tuple(hops), "no listener here: UDP 192.168.56.10:53", Outcome.REFUSED, True, 5,
    )  # fmt: skip


def ping() -> Packet:
    """An ICMP packet, which has no ports; without a conntrack entry and without any decision."""
    ends = Endpoints("10.0.0.1", 0, "10.0.0.2", 0)
    return Packet(
        14 << 8, EPOCH, HOST, "lo", "IPv4", "ICMP", ends, "", 84,
        verdict="delivered to node's kernel", outcome=Outcome.DELIVERED, number=6,
    )  # fmt: skip


def every() -> list[Packet]:
    return [node_port(), node_port_reply(), rejected(), full_queue(), no_socket(), ping()]
