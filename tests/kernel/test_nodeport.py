# SPDX-License-Identifier: Apache-2.0
"""Requests through a NodePort: the packets, rewrites and verdicts are those that tcpdump and conntrack saw."""

from __future__ import annotations

import subprocess
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from scenes import topology, traffic
from tests.kernel import pcap
from tests.kernel.watching import Watch
from tests.support import hop_fields
from tracer.model.endpoints import Endpoints
from tracer.model.filter import Filter
from tracer.model.hop import RewriteHop, TableHop
from tracer.model.packet import Packet

REQUESTS = 5


def as_seen(packet: Packet, ends: Endpoints, length_matters: bool) -> pcap.Seen:
    return (packet.protocol, ends.src, ends.sport, ends.dst, ends.dport,
            packet.seq if packet.protocol == "TCP" else packet.length if length_matters else 0)  # fmt: skip


def before(packet: Packet) -> Endpoints:
    return packet.endpoints


def after(packet: Packet) -> Endpoints:
    rewrites = [h.nat for h in packet.hops if isinstance(h, RewriteHop)]
    return rewrites[-1].after if rewrites else packet.endpoints


def arrived(packet: Packet) -> bool:
    """Delivered, or dropped by TCP at its end: a segment that comes late, or twice, on two slow CPUs."""
    return packet.outcome == "delivered" or (packet.drop is not None and packet.hops[-1].netns != "node")


def from_client(packet: Packet, addr: str) -> bool:
    return packet.endpoints.src == addr


@pytest.mark.parametrize(
    ("address", "client", "gateway", "udp"),
    [
        pytest.param(topology.NODE4, topology.CLIENT4, topology.GATEWAY4, False, marks=pytest.mark.matrix),
        (topology.NODE6, topology.CLIENT6, topology.GATEWAY6, False),
        (topology.NODE4, topology.CLIENT4, topology.GATEWAY4, True),
        pytest.param(topology.NODE6, topology.CLIENT6, topology.GATEWAY6, True, marks=pytest.mark.matrix),
    ],
    ids=["tcp4", "tcp6", "udp4", "udp6"],
)
def test_every_packet_is_as_tcpdump_saw_it(
    watch: Watch, tmp_path: Path, address: str, client: str, gateway: str, udp: bool
) -> None:
    port = traffic.NODEPORT_UDP if udp else traffic.NODEPORT_HTTP
    ask = traffic.udp_ask if udp else traffic.http_get
    outside, inside = tmp_path / "client.pcap", [tmp_path / f"{pod.name}.pcap" for pod in topology.PODS]
    with ExitStack() as captures, watch(Filter(ports=(port,))) as seen:
        captures.enter_context(pcap.tcpdump(outside, "eth0", "client", f"port {port}"))
        for pod, path in zip(topology.PODS, inside, strict=True):
            captures.enter_context(pcap.tcpdump(path, "eth0", pod.name, f"host {gateway} and (tcp or udp)"))
        replies = [ask(address, port) for _ in range(REQUESTS)]
    assert [r.outcome for r in replies] == ["answered"] * REQUESTS
    assert not seen.losses
    assert all(p.complete for p in seen.packets)

    requests = [p for p in seen.packets if from_client(p, client)]
    answers = [p for p in seen.packets if not from_client(p, client)]
    on_client, in_pods = Counter(pcap.read(outside)), Counter(s for path in inside for s in pcap.read(path))
    assert on_client == Counter([as_seen(p, before(p), True) for p in requests] + [as_seen(p, after(p), True) for p in answers])
    assert in_pods == Counter([as_seen(p, after(p), True) for p in requests] + [as_seen(p, before(p), True) for p in answers])
    for packet in requests:
        assert [h.nat.kind for h in packet.hops if isinstance(h, RewriteHop)] == ["DNAT", "MASQUERADE"]
        assert "pod-" in packet.verdict and arrived(packet), packet.verdict
    for packet in answers:
        assert [h.nat.kind for h in packet.hops if isinstance(h, RewriteHop)] == ["reverse MASQUERADE", "reverse DNAT"]
        assert packet.outcome == "forwarded" or arrived(packet), packet.verdict


@pytest.mark.matrix
def test_rewrites_are_those_of_conntrack(watch: Watch) -> None:
    with watch(Filter(ports=(traffic.NODEPORT_HTTP,))) as seen:
        sports = [traffic.http_get().sport for _ in range(REQUESTS)]
        listing = subprocess.run(["conntrack", "-L", "-p", "tcp"], capture_output=True, text=True, check=True).stdout
    flows = {}
    for line in listing.splitlines():
        pairs = [f.split("=", 1) for f in line.split() if "=" in f]
        values = [v for k, v in pairs if k in ("src", "dst", "sport", "dport")]
        orig = Endpoints(values[0], int(values[2]), values[1], int(values[3]))
        flows[orig] = Endpoints(values[4], int(values[6]), values[5], int(values[7]))
    for sport in sports:
        mine = [p for p in seen.packets if p.flow and p.flow.orig.sport == sport]
        assert len(mine) >= 8, [p.endpoints for p in mine]
        for packet in mine:
            assert packet.flow and flows[packet.flow.orig] == packet.flow.reply
        first = mine[0]
        assert after(first) == flows[before(first)].reversed
        assert [h.table for h in first.hops if isinstance(h, TableHop) and h.table == "nat"], "the first packet must pass nat"
        assert not [h for p in mine[1:] for h in p.hops if hop_fields.table(h) == "nat"], "later packets must not pass nat"


def test_only_the_first_packet_is_new(watch: Watch) -> None:
    with watch(Filter(ports=(traffic.NODEPORT_HTTP,))) as seen:
        traffic.http_get()
    states = [p.flow.state for p in seen.packets if p.flow]
    assert states[0] == "NEW" and set(states[1:]) == {"ESTABLISHED"}
    syn = seen.packets[0]
    assert syn.tcp_flags == "SYN"
    assert syn.handshake and syn.handshake.accepted and syn.verdict.startswith("SYN answered by pid ")
