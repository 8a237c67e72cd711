# SPDX-License-Identifier: Apache-2.0
"""Rules of nftables that take a packet over or copy it, where no other part of the run shows which packet it is."""

from __future__ import annotations

import json
import subprocess
import time

import pytest

from scenes import traffic
from scenes.topology import CLIENT4, DRAIN, DRAIN4, DRAIN6, NODE4
from tests.kernel.watching import Watch
from tracer.model.filter import Filter
from tracer.model.hop import ChainHop, Hop, RewriteHop, trace_of, verdict_of
from tracer.model.packet import Packet

FWD, FWD_TO, DUP, OTHER, OUT, PLAIN = 9571, 9572, 9573, 9574, 9575, 9576
TURNS = 20
"""Packets that are taken over, each followed by one of the node: it often gets the same socket buffer."""
READ_SECONDS = 1.5
INGRESS = f"""table netdev taken {{
  chain in {{
    type filter hook ingress device "DEVICE" priority 0;
    udp dport {FWD} fwd to "{DRAIN}"
    udp dport {FWD_TO} fwd ip to {DRAIN4} device "{DRAIN}"
    udp dport {DUP} dup to "{DRAIN}"
    udp dport {OTHER} fwd ip6 to {DRAIN6} device "{DRAIN}"
  }}
}}
"""
REFUSED = ("refused", "dropped")
"""No socket listens. A kernel without drop reasons (before 5.17) does not report that this was the reason."""
EGRESS = f"""table netdev leaving {{
  chain out {{
    type filter hook egress device "DEVICE" priority 0;
    udp dport {OUT} fwd to "{DRAIN}"
  }}
}}
"""


def device() -> str:
    """The node's interface towards the client."""
    shown = subprocess.run(["ip", "-j", "-4", "addr", "show", "to", NODE4], check=True, capture_output=True, text=True)
    return str(next(link for link in json.loads(shown.stdout) if link)["ifname"])


def nft(text: str, *options: str) -> bool:
    command = ["nft", *options, "-f", "-"]
    return subprocess.run(command, input=text, text=True, capture_output=True, check=False).returncode == 0


def packet_to(port: int, packets: list[Packet]) -> tuple[Packet, list[Hop]]:
    """The datagram, and its hops in chains of devices."""
    found = [p for p in packets if p.endpoints.dport == port and p.protocol == "UDP"]
    assert len(found) == 1, (port, packets)
    return found[0], [h for h in found[0].hops if isinstance(h, ChainHop) and h.hook in ("INGRESS", "EGRESS") and not h.clone]


def decided(hops: list[Hop]) -> list[tuple[str, str]]:
    """What each rule of one run did, and its text."""
    assert len(hops) == 1, hops
    trace = trace_of(hops[0])
    assert trace and trace.decision and not trace.undecided, trace
    return [(v.verdict, v.rule.text if v.rule else "policy") for v in trace.hits]


@pytest.mark.matrix
def test_the_first_rule_takes_the_packet_over(watch: Watch) -> None:
    """Only the `fwd` rule of the run acts: when the kernel reports it, the packet belongs to another device, or is gone."""
    name = device()
    leaves = nft(EGRESS.replace("DEVICE", name), "-c")
    ports = (FWD, FWD_TO, DUP, OTHER, OUT)
    try:
        assert nft(INGRESS.replace("DEVICE", name))
        assert not leaves or nft(EGRESS.replace("DEVICE", name))
        with watch(Filter(ports=ports), nft=True) as seen:
            time.sleep(READ_SECONDS)
            for port in (FWD, FWD_TO, DUP, OTHER):
                traffic.udp_ask(NODE4, port, timeout=0.1)
            traffic.udp_ask(CLIENT4, OUT, ns=None, timeout=0.1)
    finally:
        nft("delete table netdev taken")
        nft("delete table netdev leaving")
    for port, to in ((FWD, f'fwd to "{DRAIN}"'), (FWD_TO, f'fwd ip to {DRAIN4} device "{DRAIN}"')):
        packet, hops = packet_to(port, seen.packets)
        assert decided(hops) == [("FWD", f"udp dport {port} {to}")]
        assert (packet.outcome, verdict_of(hops[0]), packet.endpoints.dst) == ("stolen", "STOLEN", NODE4)
        assert packet.complete
    copied, hops = packet_to(DUP, seen.packets)
    assert decided(hops) == [("DUP", f'udp dport {DUP} dup to "{DRAIN}"'), ("ACCEPT", "policy")]
    assert copied.outcome in REFUSED, copied.verdict
    # An IPv4 packet is not sent to a neighbour of IPv6: the rule's function was called, and accepted it.
    passed, hops = packet_to(OTHER, seen.packets)
    assert decided(hops) == [("ACCEPT", "policy")] and passed.outcome in REFUSED
    sent, hops = packet_to(OUT, seen.packets)
    if leaves:
        assert decided(hops) == [("FWD", f'udp dport {OUT} fwd to "{DRAIN}"')] and sent.outcome == "stolen"


@pytest.mark.matrix
def test_the_buffer_of_a_packet_that_was_taken_over_is_reused(watch: Watch) -> None:
    """The device that gets the packet frees it without any event. The next packet of the node is a packet of its own."""
    try:
        assert nft(INGRESS.replace("DEVICE", device()))
        with watch(Filter(ports=(FWD, PLAIN)), nft=True) as seen:
            time.sleep(READ_SECONDS)
            for _ in range(TURNS):
                traffic.udp_ask(NODE4, FWD, timeout=0.001)
                traffic.udp_ask(CLIENT4, PLAIN, ns=None, timeout=0.001)
    finally:
        nft("delete table netdev taken")
    datagrams = [p for p in seen.packets if p.protocol == "UDP" and not p.continues]
    taken, plain = ([p for p in datagrams if p.endpoints.dport == port] for port in (FWD, PLAIN))
    wrong = [p for p in taken if p.outcome != "stolen"]
    assert len(taken) == TURNS and not wrong, "\n".join(map(str, wrong[0].hops if wrong else taken))
    assert len(plain) == TURNS and all(p.netns == "node" and p.outcome in REFUSED for p in plain)
    assert not any(isinstance(h, RewriteHop) for p in (*taken, *plain) for h in p.hops), "NAT changes none of these packets"
