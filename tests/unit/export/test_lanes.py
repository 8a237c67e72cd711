# SPDX-License-Identifier: Apache-2.0
"""The lanes of a packet: namespaces in the order in which it passed them, and what lies behind interfaces."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support import sample_packets
from tests.support.sample_packets import hop
from tracer.export._lanes import Lane, lanes_of
from tracer.model.hop import Drop, Hop
from tracer.model.namespace_name import HOST, NO_NETNS
from tracer.model.packet import Outcome, Packet


def packet(outcome: Outcome, *hops: Hop) -> Packet:
    found = replace(sample_packets.ping(), hops=hops, outcome=outcome)
    return replace(found, netns=hops[0].netns) if hops else found


ARRIVED = hop(0, "hook", "PREROUTING", in_iface="eth0")
NAMELESS = hop(0, "nat-hook", "PREROUTING", verdict="ACCEPT")
"""A hop without an interface."""
SENT = hop(0, "hook", "OUTPUT", "client", out_iface="eth0")
IN_POD = hop(9, "hook", "INPUT", "pod-a", in_iface="eth0")


@pytest.mark.parametrize(
    ("outcome", "hops", "lanes"),
    [
        (Outcome.DELIVERED, (SENT, ARRIVED, IN_POD), [Lane("client"), Lane(HOST), Lane("pod-a")]),
        (Outcome.DELIVERED, (ARRIVED, IN_POD), [Lane(HOST, "eth0"), Lane(HOST), Lane("pod-a")]),
        (Outcome.DELIVERED, (NAMELESS, ARRIVED, IN_POD), [Lane(HOST, "eth0"), Lane(HOST), Lane("pod-a")]),
        (Outcome.DELIVERED, (NAMELESS, IN_POD), [Lane(HOST), Lane("pod-a")]),
        (Outcome.SENT, (SENT,), [Lane("client"), Lane("client", "eth0")]),
        (Outcome.DROPPED, (SENT,), [Lane("client")]),
        (Outcome.FORWARDED, (ARRIVED, hop(1, "hook", "POSTROUTING", out_iface="cni0")),
         [Lane(HOST, "eth0"), Lane(HOST), Lane(HOST, "cni0")]),
        (Outcome.DELIVERED, (hop(0, "hook", "PREROUTING", in_iface="lo"),), [Lane(HOST)]),
        (Outcome.SENT, (SENT, IN_POD), [Lane("client"), Lane("pod-a")]),
    ],
)  # fmt: skip
def test_lanes(outcome: Outcome, hops: tuple[Hop, ...], lanes: list[Lane]) -> None:
    assert lanes_of(packet(outcome, *hops)) == lanes


def test_the_way_of_a_copy_is_left_out() -> None:
    copy = hop(5, "drop", "", "pod-a", drop=Drop("QUEUE_PURGE", "skb_queue_purge"), clone=True)
    assert lanes_of(packet(Outcome.DELIVERED, ARRIVED, copy)) == [Lane(HOST, "eth0"), Lane(HOST)]


def test_a_packet_without_hops_and_without_a_namespace() -> None:
    assert lanes_of(packet(Outcome.DELIVERED)) == [Lane(HOST)]
    assert lanes_of(replace(packet(Outcome.DELIVERED), netns=NO_NETNS)) == [Lane("")]
