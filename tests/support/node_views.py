# SPDX-License-Identifier: Apache-2.0
"""Views of packets at nodes, for tests of joining."""

from __future__ import annotations

from typing import Any

from tracer.model.endpoints import Endpoints
from tracer.model.hop import Drop, DropHop, HookHop, Hop, Nat, NatHop
from tracer.model.joined_packet import NodeView
from tracer.model.namespace_name import HOST
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Outcome, Packet

EPOCH = 1_769_868_202_000_000_000
MICRO, MILLI, SECOND = 1_000, 1_000_000, 1_000_000_000
INSIDE_NS = 30 * MICRO
"""Time between the arrival and the departure of these packets, ns."""
POD_A, POD_B = "10.244.1.7", "10.244.2.8"
ENDS = Endpoints(POD_A, 40001, POD_B, 8080)
_COUNT = iter(range(1, 1 << 30))


def packet(time: int = 0, ends: Endpoints = ENDS, way: str = "out", to: Endpoints | None = None, **values: Any) -> Packet:
    """A packet.

    Args:
        time: ns after EPOCH.
        ends: Addresses with which it came in or was made.
        way: "out" = made here and sent, "in" = arrived and was delivered, "through" = arrived and was forwarded, "drop" =
            arrived and was dropped, "local" = made and delivered here.
        to: Addresses after a translation; None = none.
        values: Other fields.
    """
    arrives, leaves = way in ("in", "through", "drop"), way in ("out", "through")
    hops: list[Hop] = [
        HookHop(0, HOST, Hook.PREROUTING, in_iface="eth0", verdict=Verdict.ACCEPT)
        if arrives
        else HookHop(0, HOST, Hook.OUTPUT, out_iface="eth0", verdict=Verdict.ACCEPT)
    ]
    if to:
        hops.append(NatHop(INSIDE_NS // 2, HOST, Hook.POSTROUTING, nat=Nat("DNAT", ends, to)))
    if leaves:
        hops.append(HookHop(INSIDE_NS, HOST, Hook.POSTROUTING, out_iface="eth0", verdict=Verdict.ACCEPT))
    if way == "drop":
        hops.append(DropHop(INSIDE_NS, HOST, drop=Drop("NETFILTER_DROP", "nf_hook_slow"), verdict=Verdict.DROP))
    outcomes = {"out": Outcome.SENT, "through": Outcome.FORWARDED, "drop": Outcome.DROPPED}
    outcome = outcomes.get(way, Outcome.DELIVERED)
    given: dict[str, Any] = {
        "tcp_flags": "ACK",
        "length": 152,
        "seq": 77,
        "ack": 88,
        "ident": 4711,
        "verdict": f"{outcome} to eth0",
    }
    given |= values
    return Packet(
        next(_COUNT),
        EPOCH + time,
        HOST,
        "eth0",
        "IPv6" if ":" in ends.src else "IPv4",
        given.pop("protocol", "TCP"),
        ends,
        hops=tuple(hops),
        outcome=outcome,
        **given,
    )


def view(
    node: str, time: int = 0, way: str = "out", offset: int | None = 0, error: int = 10 * MICRO, **values: Any
) -> NodeView:
    """A view of a packet. offset, error: of the node's clock. values: as of `packet`."""
    return NodeView(node, packet(time, way=way, **values), offset, error)
