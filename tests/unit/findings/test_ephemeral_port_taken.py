# SPDX-License-Identifier: Apache-2.0
"""A packet to a connection of the node goes to a Service, because the connection's port is a NodePort."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import findings as f
from tests.support.nodes import node
from tracer.findings.ephemeral_port_taken import cure
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.hop import NatHop
from tracer.model.kube import ObjectReference
from tracer.model.netfilter import Hook
from tracer.model.packet import Packet
from tracer.node.node import ListeningSocket
from tracer.node.procnet import ConnectedSocket
from tracer.util.questions import Answer, NotAsked, Question

MODE, NODE, PEER_PORT, PORT = "1.20.2-iptables-legacy", "192.168.56.10", 5000, 30285
ANSWER, INSIDE = (Endpoints(f.CLIENT, PEER_PORT, *end) for end in ((NODE, PORT), ("10.244.0.11", 8080)))
MINE = ConnectedSocket(NODE, PORT, f.CLIENT, PEER_PORT, 1)
RANGE, RESERVED = "net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports"


def sent_to_a_pod(flags: str = "ACK", protocol: str = "TCP") -> Packet:
    """A packet of the peer for which the rules of a NodePort were evaluated."""
    rules = node(MODE, "S2-one").iptables()
    hit = f.hit(
        rules, "nat", ("PREROUTING", "KUBE-SERVICES"), ("KUBE-SERVICES", "KUBE-NODEPORTS"), ("KUBE-NODEPORTS", "KUBE-SVC"),
        ("KUBE-SVC-5DZI2HW7VHZLUOJ5", "KUBE-SEP"), ("KUBE-SEP-66PQAUDBO7BH47NT", "DNAT"),
    )  # fmt: skip
    made = f.packet([f.nat(rules, Hook.PREROUTING, "DNAT", ANSWER, INSIDE, hit)], ANSWER, protocol=protocol)
    return replace(made, tcp_flags=flags if protocol == "TCP" else "")


def on_node(*connections: ConnectedSocket, ports: str = "1024 65535", reserved: str = "") -> f.FakeNode:
    others = {(22, "tcp"): ListeningSocket("0.0.0.0", 22, 700, "sshd"), (1, "tcp"): ListeningSocket(NODE, 1, 812, "curl")}
    return f.FakeNode(listeners=others, settings={RANGE: ports, RESERVED: reserved}, connections=connections)


def found(packet: Packet, folder: Path, on: f.FakeNode) -> list[Finding]:
    every = f.findings_of([packet], node(MODE, "S2-one").cluster_view(folder), on)[1]
    return [finding for finding in every if finding.name == "ephemeral_port_taken"]


def test_a_segment_of_a_connection_without_an_entry(tmp_path: Path) -> None:
    (finding,) = found(sent_to_a_pod(), tmp_path, on_node(MINE))
    assert finding.certain and finding.subject == ObjectReference("Service", "default", "http-proxy")
    assert finding.cause == (
        "A connection of curl (pid 812) on this node to 192.168.56.1:5000 has the port 30285, which is also the NodePort of"
        " Service default/http-proxy: conntrack has no entry of the connection any more, so the Service's rule sent the peer's"
        " packet to pod default/http-proxy-a (node-1), and the process did not get it."
    )
    (rule,) = f.proofs(finding, "rule")
    assert "DNAT" in rule and rule.endswith("(observed)")
    assert f.proofs(finding, "process") == [
        "curl (pid 812) has a tcp socket 192.168.56.10:30285 -> 192.168.56.1:5000 (/proc/net)"
    ]
    assert f.proofs(finding, "setting") == ["ip_local_port_range is 1024-65535, ip_local_reserved_ports is empty (/proc/sys)"]
    assert "`ss -antp 'sport = :30285'`" in finding.check
    assert "`sysctl -w net.ipv4.ip_local_reserved_ports=30000-32767`" in finding.cure


def test_a_datagram(tmp_path: Path) -> None:
    packet = sent_to_a_pod(protocol="UDP")
    (finding,) = found(packet, tmp_path, on_node(MINE))
    assert finding.certain and "`ss -anup " in finding.check and " has a udp socket " in f.proofs(finding, "process")[0]


def test_an_answer_that_ipvs_takes(tmp_path: Path) -> None:
    packet = replace(f.ipvs(NODE, PORT, "10.244.0.11", sport=PEER_PORT), tcp_flags="SYN ACK")
    (finding,) = found(packet, tmp_path, on_node(MINE))
    assert finding.certain and ": IPVS takes every packet that may begin a connection to this port, and sent" in finding.cause
    assert f.proofs(finding, "server")


def test_ipvs_repeats_its_choice(tmp_path: Path) -> None:
    """The peer sends its SYN ACK again. Other packets of a connection that IPVS knows are those of its own clients."""
    for flags, count in (("SYN ACK", 1), ("ACK", 0), ("PSH ACK", 0)):
        earlier = replace(f.ipvs(NODE, PORT, "10.244.0.11", "earlier", PEER_PORT), tcp_flags=flags)
        assert len(found(earlier, tmp_path, on_node(MINE))) == count


def test_a_port_that_the_process_has_chosen_itself(tmp_path: Path) -> None:
    """The connection is lost all the same; the settings do not explain its port."""
    for on in (on_node(MINE, ports="32768 60999"), on_node(MINE, reserved="30000-32767")):
        (finding,) = found(sent_to_a_pod(), tmp_path, on)
        assert finding.certain and f.proofs(finding, "setting") == []


def test_a_process_that_cannot_be_seen(tmp_path: Path) -> None:
    (finding,) = found(sent_to_a_pod(), tmp_path, on_node(replace(MINE, inode=7)))
    assert finding.certain and "A connection of a process that cannot be seen from here on this node" in finding.cause


@pytest.mark.parametrize(
    ("packet", "connections"),
    [
        (sent_to_a_pod(), ()),
        (sent_to_a_pod(), (replace(MINE, peer="192.168.56.2"),)),
        (sent_to_a_pod(), (replace(MINE, peer_port=5001),)),
        (sent_to_a_pod(), (replace(MINE, port=30286),)),
        (sent_to_a_pod("SYN"), (MINE,)),
    ],
    ids=["no connection", "another peer", "another port of the peer", "another port", "a new connection to the Service"],
)
def test_no_finding(packet: Packet, connections: tuple[ConnectedSocket, ...], tmp_path: Path) -> None:
    assert found(packet, tmp_path, on_node(*connections)) == []


def test_a_translation_of_conntrack_is_no_finding(tmp_path: Path) -> None:
    made = sent_to_a_pod()
    (hop,) = made.hops
    assert isinstance(hop, NatHop)
    assert found(replace(made, hops=(replace(hop, from_conntrack=True),)), tmp_path, on_node(MINE)) == []


def test_a_socket_that_no_process_holds_is_no_finding(tmp_path: Path) -> None:
    """A connection in TIME_WAIT has no inode."""
    assert found(sent_to_a_pod(), tmp_path, on_node(replace(MINE, inode=0))) == []


def test_a_capture_that_did_not_ask(tmp_path: Path) -> None:
    def journal(question: Question, ask: object, default: object, requests: int = 1) -> Answer[object]:
        return NotAsked(question)

    cluster = node(MODE, "S2-one").cluster_view(tmp_path)
    assert f.findings_of([sent_to_a_pod()], cluster, on_node(MINE), journal)[1] == []  # type: ignore[arg-type]


def test_the_cure_keeps_what_is_reserved() -> None:
    assert "ip_local_reserved_ports=8080,9000-9100,30000-32767`" in cure((30285, 31000), "8080,9000-9100")
    assert "ip_local_reserved_ports=20000,30285`" in cure((20000, 30285), "")
