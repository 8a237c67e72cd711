# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of SYN verdicts and of timelines: an invented namespace, and the packets of handshakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tracer.handshakes.analyzer import HandshakeAnalyzer
from tracer.model.endpoints import Endpoints
from tracer.model.handshake import HandshakeVerdict
from tracer.model.hop import (
    DecisionDetail,
    DetailHop,
    Handshake,
    HandshakeHop,
    HookHop,
    Hop,
    Nat,
    NatHop,
    Socket,
    SocketHop,
)
from tracer.model.namespace_name import HOST, Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Flow, Packet
from tracer.node.namespace_questions import NamespaceInspector
from tracer.node.namespace_view import NamespaceReader
from tracer.node.procnet import BoundSocket
from tracer.packets.outcome import classify
from tracer.util.questions import Journal, live

MS = 1_000_000
POD_A = Netns("pod-a")
REQUESTED = Endpoints("192.168.56.1", 40812, "192.168.56.10", 30285)
AFTER_DNAT = Endpoints("192.168.56.1", 40812, "10.244.0.11", 8080)
INSIDE = Endpoints("10.244.0.1", 23711, "10.244.0.11", 8080)
SEQ, SERVER_SEQ = 1000, 7000
LISTENER = {"accept_queue": 0, "accept_limit": 128, "syn_queue": 0, "syncookies": 1, "syn_backlog": 128}


class FakeReader(NamespaceReader):
    """Answers with the given values, the same in every namespace. counted: what the next reading of counters returns."""

    def __init__(self, settings: dict[str, str] | None = None, listening: tuple[BoundSocket, ...] = ()) -> None:
        self.settings, self.listening, self.counted = settings or {}, listening, {"ListenDrops": 0}

    def bound(self, name: str) -> tuple[BoundSocket, ...]:
        return self.listening

    def setting(self, name: str, setting: str, kept_seconds: float = 0) -> str:
        return self.settings.get(setting, "")

    def counters(self, name: str) -> dict[str, int]:
        return dict(self.counted)

    def owner(self, inode: int) -> tuple[int, str]:
        return (4242, "nginx") if inode == 48213 else (0, "")

    def names(self) -> list[Netns]:
        return [HOST, POD_A]


class FakeInspector(NamespaceInspector):
    """Answers from a FakeReader with these values. fake: that reader."""

    def __init__(
        self, settings: dict[str, str] | None = None, listening: tuple[BoundSocket, ...] = (), journal: Journal = live
    ) -> None:
        self.fake = FakeReader(settings, listening)
        super().__init__(self.fake, journal)


def packet(ends: Endpoints, flags: str, hops: Sequence[Hop], identity: int = 1, **more: Any) -> Packet:
    """A TCP packet with these hops, with its verdict and outcome."""
    first = hops[0]
    made = Packet(identity, first.time, first.netns, first.in_iface, "IPv4", "TCP", ends, flags, 60, hops=tuple(hops), **more)
    verdict, outcome = classify(made)
    return replace(made, verdict=verdict, outcome=outcome)


def decision_detail(what: str, at: int, netns: Netns = POD_A, **facts: Any) -> Hop:
    return DetailHop(at, netns, detail=DecisionDetail(what, facts))


def way(at: int = 0) -> list[Hop]:
    """The SYN's hops on its way to pod-a, without those in the pod."""
    return [
        HookHop(at, HOST, Hook.PREROUTING, verdict=Verdict.ACCEPT, in_iface="eth0"),
        NatHop(at + 1, HOST, Hook.PREROUTING, nat=Nat("DNAT", REQUESTED, AFTER_DNAT)),
        NatHop(at + 2, HOST, Hook.POSTROUTING, nat=Nat("MASQUERADE", AFTER_DNAT, INSIDE)),
        HookHop(at + 3, HOST, Hook.POSTROUTING, verdict=Verdict.ACCEPT, out_iface="cni0"),
    ]


def syn(*more: Hop, at: int = 0, identity: int = 1, seq: int = SEQ, **fields: Any) -> Packet:
    """A SYN to a NodePort: the hops of way(), then these hops."""
    fields.setdefault("flow", Flow(REQUESTED, INSIDE.reversed, "NEW", False, 0, HOST))
    return packet(REQUESTED, "SYN", [*way(at), *more], identity, seq=seq, **fields)


def at_listener(accepted: bool | None, at: int = 10, cookie: bool = False, **facts: Any) -> list[Hop]:
    """The SYN's hops at the listener. facts: values of its queues that differ from LISTENER."""
    queues: dict[str, Any] = {**LISTENER, **facts}
    syn_queue = queues["syn_queue"] + bool(accepted)
    shake = Handshake("SYN", accepted, queues["accept_queue"], queues["accept_limit"], syn_queue, cookie)
    return [
        SocketHop(at, POD_A, socket=Socket(48213, "LISTEN", 4242, "nginx")),
        decision_detail("listener", at + 1, **queues),
        HandshakeHop(at + 2, POD_A, handshake=shake),
    ]


def synack(at: int = 5 * MS, identity: int = 2, ends: Endpoints | None = None, **fields: Any) -> Packet:
    """The SYN ACK, translated back."""
    ends = ends or INSIDE.reversed
    half = AFTER_DNAT.reversed
    hops = [
        HookHop(at, HOST, Hook.PREROUTING, verdict=Verdict.ACCEPT, in_iface="cni0"),
        NatHop(at + 1, HOST, Hook.PREROUTING, nat=Nat("reverse MASQUERADE", INSIDE.reversed, half)),
        NatHop(at + 2, HOST, Hook.POSTROUTING, nat=Nat("reverse DNAT", half, REQUESTED.reversed)),
        HookHop(at + 3, HOST, Hook.POSTROUTING, verdict=Verdict.ACCEPT, out_iface="eth0"),
    ]
    flow = Flow(REQUESTED, INSIDE.reversed, "ESTABLISHED", True, 0, HOST)
    fields = {"flow": flow, **fields}
    return packet(ends, "SYN ACK", fields.pop("hops", hops), identity, seq=SERVER_SEQ, ack=SEQ + 1, **fields)


def last_ack(accepted: bool | None = True, at: int = 8 * MS, identity: int = 3, queue: int = 0) -> Packet:
    """The client's last ACK of the handshake. accepted: the listener's decision, None = the ACK does not reach the listener."""
    more = []
    if accepted is not None:
        shake = Handshake("ACK", accepted, queue, 128, 0)
        more = [HandshakeHop(at + 9, POD_A, handshake=shake)]
    flow = Flow(REQUESTED, INSIDE.reversed, "ESTABLISHED", False, 0, HOST)
    return packet(REQUESTED, "ACK", [*way(at), *more], identity, seq=SEQ + 1, ack=SERVER_SEQ + 1, flow=flow)


def verdicts(*packets: Packet, inspector: NamespaceInspector | None = None) -> list[HandshakeVerdict]:
    """The verdicts on these packets, when they end in this order, and then the run ends."""
    syns = HandshakeAnalyzer(inspector or FakeInspector())
    found = []
    for each in packets:
        syns.feed(each)
        found += syns.expire(each.hops[-1].time)
    return found + syns.flush()


def cause(*packets: Packet, inspector: NamespaceInspector | None = None) -> tuple[str, str, str]:
    """(name, text, evidence) of the only SYN's cause."""
    (only,) = verdicts(*packets, inspector=inspector)
    return only.cause.name, only.cause.text, only.cause.evidence.value
