# SPDX-License-Identifier: Apache-2.0
"""One connection is one timeline, also with IPVS, a tunnel, copies, IPv6, and a path with a small MTU."""

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
from tests.kernel.test_timelines import only, packet_entries, stages
from tests.kernel.timeline_runs import follow, following
from tests.kernel.watching import Watch
from tests.support.nodes import node as recorded

pytestmark = pytest.mark.thorough

INNER_NODE, INNER_FAR = "10.250.0.1", "10.250.0.2"
SMALL_MTU = 1300
"""Bytes: less than a full segment, more than IPv6 needs."""


def test_ipvs(watch: Watch) -> None:
    """A node with kube-proxy in ipvs mode."""
    restored.put(recorded("1.20.2-ipvs-nft", "S2-three"), "ipvs")
    try:
        followed = follow(watch, (traffic.NODEPORT_HTTP,), traffic.http_get)
    finally:
        restored.plain()
    one = only(followed, traffic.NODEPORT_HTTP)
    assert packet_entries(one)[:3] == ["-> SYN", "<- SYN ACK", "-> ACK"]
    assert f"INPUT IPVS (rr) {topology.NODE4}:{traffic.NODEPORT_HTTP} -> " in stages(one, "->"), followed.text
    assert "POSTROUTING MASQUERADE" in stages(one, "->") and "reverse IPVS" in stages(one, "<-"), followed.text
    assert (one.state, one.cause) == ("closed", "accepted"), followed.text


def test_ipv6_node_port(watch: Watch) -> None:
    followed = follow(watch, (traffic.NODEPORT_HTTP,), lambda: traffic.http_get(V6.node))
    one = only(followed, traffic.NODEPORT_HTTP)
    assert "PREROUTING DNAT [fd00:56::10]:30285 -> [fd00:10:244::1" in stages(one, "->"), followed.text
    assert "reverse MASQUERADE" in stages(one, "<-") and (one.state, one.cause) == ("closed", "accepted"), followed.text


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
    """Both ends of it are on this machine, as in kind: a packet that goes in and comes out is one packet, and one SYN."""
    port = 9141
    far = servers.Server(topology.CLIENT, "far", http=port, udp=None)
    with tunnel(), servers.running([far]):
        followed = follow(watch, (port,), lambda: traffic.http_get(INNER_FAR, port, ns="pod-a"))
    one = only(followed, port)
    assert packet_entries(one)[:3] == ["-> SYN", "<- SYN ACK", "-> ACK"], followed.text
    assert "in client" in stages(one, "->").splitlines(), followed.text
    assert not [s.remark for s in one.entries if "sent again" in s.remark], followed.text
    (verdict,) = [s.text for s in one.entries if s.kind == "verdict"]
    assert verdict.startswith("accepted by scene-far") and "in client" in verdict, verdict
    assert (one.state, one.cause) == ("closed", "accepted"), followed.text


def test_a_copy_is_shown_beside_its_packet(watch: Watch) -> None:
    to = topology.PODS[1].addr4
    tee = f"*mangle\n-A PREROUTING -i eth0 -p udp --dport {traffic.NODEPORT_UDP} -j TEE --gateway {to}\nCOMMIT\n"
    with also_rules(tee):
        followed = follow(watch, (traffic.NODEPORT_UDP,), traffic.udp_ask)
    one = only(followed, traffic.NODEPORT_UDP, "UDP")
    assert [w for w in packet_entries(one) if w.startswith("->")] == ["-> UDP"] and one.state == "answered", followed.text
    assert "(copy)" in stages(one, "->"), followed.text


def test_a_path_with_a_small_mtu(watch: Watch) -> None:
    """The node's ICMP errors are dropped. Small segments get through, the others are sent again and again."""
    port = 9142
    server = servers.Server("pod-a", "pod-a", http=port, udp=None)
    links.ip(f"link set {topology.BRIDGE} mtu {SMALL_MTU}")
    try:
        with (
            also_rules("*filter\n-I OUTPUT -p icmp --icmp-type fragmentation-needed -j DROP\nCOMMIT\n"),
            servers.running([server]),
            following(watch, (port,)) as followed,
            traffic.connections(topology.PODS[0].addr4, port, 1) as (sock,),
        ):
            sock.sendall(b"x" * 1400)
            time.sleep(2.5)
    finally:
        links.ip(f"link set {topology.BRIDGE} mtu 1500")
    one = only(followed, port)
    remarks = [s.remark for s in one.entries if s.remark]
    assert any(r.startswith("sent again (2. try), the first ended: DROPPED") for r in remarks), followed.text
    assert any("perhaps an MTU black hole" in r for r in remarks), followed.text
    assert one.cause == "accepted" and one.lost >= 3 and one.retransmitted >= 2, followed.text
