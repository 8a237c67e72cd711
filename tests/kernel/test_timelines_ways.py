# SPDX-License-Identifier: Apache-2.0
"""One timeline by whatever way a connection goes: IPVS, a tunnel, copies, IPv6, a way that is too narrow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from incidents import links
from scenes import servers, topology, traffic
from scenes.netns import entered
from tests.kernel import restored
from tests.kernel.sides import V6, also_rules
from tests.kernel.test_timelines import only, stages, ways
from tests.kernel.timeline_runs import follow, following
from tests.kernel.watching import Watch
from tests.support.nodes import node as recorded

pytestmark = pytest.mark.thorough

INNER_NODE, INNER_FAR = "10.250.0.1", "10.250.0.2"
NARROW = 1300
"""Bytes: less than a full segment, more than IPv6 needs."""


def test_ipvs(watch: Watch) -> None:
    """A node whose kube-proxy runs in ipvs mode."""
    restored.put(recorded("1.20.2-ipvs-nft", "S2-three"), "ipvs")
    try:
        story = follow(watch, (traffic.NODEPORT_HTTP,), traffic.http_get)
    finally:
        restored.plain()
    one = only(story, traffic.NODEPORT_HTTP)
    assert ways(one)[:3] == ["-> SYN", "<- SYN ACK", "-> ACK"]
    assert f"INPUT IPVS (rr) {topology.NODE4}:{traffic.NODEPORT_HTTP} -> " in stages(one, "->"), story.text
    assert "POSTROUTING MASQUERADE" in stages(one, "->") and "reverse IPVS" in stages(one, "<-"), story.text
    assert (one.state, one.cause) == ("closed", "accepted"), story.text


def test_ipv6_node_port(watch: Watch) -> None:
    story = follow(watch, (traffic.NODEPORT_HTTP,), lambda: traffic.http_get(V6.node))
    one = only(story, traffic.NODEPORT_HTTP)
    assert "PREROUTING DNAT [fd00:56::10]:30285 -> [fd00:10:244::1" in stages(one, "->"), story.text
    assert "reverse MASQUERADE" in stages(one, "<-") and (one.state, one.cause) == ("closed", "accepted"), story.text


@contextmanager
def tunnel() -> Iterator[None]:
    """A VXLAN between the node and the client, as flannel makes it between nodes; the pods' network is behind it."""

    def end(own: str, peer: str, inner: str) -> None:
        links.ip(
            f"link add vxlan9 type vxlan id 9 local {own} remote {peer} dstport 8472",
            "link set vxlan9 up",
            f"addr add {inner}/24 dev vxlan9",
        )

    end(topology.NODE4, topology.CLIENT4, INNER_NODE)
    try:
        with entered(topology.CLIENT):
            end(topology.CLIENT4, topology.NODE4, INNER_FAR)
            links.ip(f"route add 10.244.0.0/16 via {INNER_NODE}")
        yield
    finally:
        links.remove_link("vxlan9")
        with entered(topology.CLIENT):
            links.remove_link("vxlan9")


def test_a_tunnel_between_nodes(watch: Watch) -> None:
    """Both ends of it are on this machine, as in kind: what goes in and what comes out is one packet, and one SYN."""
    port = 9141
    far = servers.Server(topology.CLIENT, "far", http=port, udp=None)
    with tunnel(), servers.running([far]):
        story = follow(watch, (port,), lambda: traffic.http_get(INNER_FAR, port, ns="pod-a"))
    one = only(story, port)
    assert ways(one)[:3] == ["-> SYN", "<- SYN ACK", "-> ACK"], story.text
    assert "in client" in stages(one, "->").splitlines(), story.text
    assert not [s.remark for s in one.entries if "sent again" in s.remark], story.text
    (told,) = [s.text for s in one.entries if s.kind == "verdict"]
    assert told.startswith("accepted by scene-far") and "in client" in told, told
    assert (one.state, one.cause) == ("closed", "accepted"), story.text


def test_a_copy_is_told_beside_its_packet(watch: Watch) -> None:
    to = topology.PODS[1].addr4
    tee = f"*mangle\n-A PREROUTING -i eth0 -p udp --dport {traffic.NODEPORT_UDP} -j TEE --gateway {to}\nCOMMIT\n"
    with also_rules(tee):
        story = follow(watch, (traffic.NODEPORT_UDP,), traffic.udp_ask)
    one = only(story, traffic.NODEPORT_UDP, "UDP")
    assert [w for w in ways(one) if w.startswith("->")] == ["-> UDP"] and one.state == "answered", story.text
    assert "(copy)" in stages(one, "->"), story.text


def test_a_way_that_is_too_narrow(watch: Watch) -> None:
    """The node may not say so: its ICMP errors are dropped. What is small gets through, the rest is sent again and again."""
    port = 9142
    server = servers.Server("pod-a", "pod-a", http=port, udp=None)
    links.ip(f"link set {topology.BRIDGE} mtu {NARROW}")
    try:
        with (
            also_rules("*filter\n-I OUTPUT -p icmp --icmp-type fragmentation-needed -j DROP\nCOMMIT\n"),
            servers.running([server]),
            following(watch, (port,)) as story,
            traffic.connections(topology.PODS[0].addr4, port, 1) as (sock,),
        ):
            sock.sendall(b"x" * 1400)
            time.sleep(2.5)
    finally:
        links.ip(f"link set {topology.BRIDGE} mtu 1500")
    one = only(story, port)
    remarks = [s.remark for s in one.entries if s.remark]
    assert any(r.startswith("sent again (2. try), the first ended: DROPPED") for r in remarks), story.text
    assert any("perhaps an MTU black hole" in r for r in remarks), story.text
    assert one.cause == "accepted" and one.lost >= 3 and one.retransmitted >= 2, story.text
