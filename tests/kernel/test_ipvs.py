# SPDX-License-Identifier: Apache-2.0
"""IPVS as kube-proxy of a real node set it up: virtual server, chosen real server, both rewrites, refusals."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scenes import servers, topology, traffic
from tests.kernel import restored
from tests.kernel.watching import Watch
from tests.support.nodes import node
from tracer.kube.attribution import attribute
from tracer.kube.catalog import ClusterView
from tracer.model.evidence import Evidence
from tracer.model.filter import Filter
from tracer.model.hop import Hop, IpvsHop, IpvsNatHop, RewriteHop
from tracer.model.packet import Packet
from tracer.render.text import TextOutput

MODE = "1.20.2-ipvs-nft"
CLUSTER_IP, PORT, NODE_PORT = traffic.CLUSTER_IP_HTTP, 8080, 30285
PODS = {pod.addr4 for pod in topology.PODS}


@pytest.fixture(scope="module")
def cluster(watch: Watch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterView]:
    """A node with kube-proxy in ipvs mode: http-proxy with three endpoints."""
    refused = {row.probe.name: row.why for row in watch.session.refused}
    if "ipvs_schedule" in refused:
        pytest.skip(refused["ipvs_schedule"])
    recorded_node = node(MODE, "S2-three")
    restored.put(recorded_node, "ipvs")
    yield recorded_node.cluster_view(tmp_path_factory.mktemp("cni"))
    restored.plain()


def ipvs(packet: Packet) -> list[Hop]:
    return [h for h in packet.hops if isinstance(h, IpvsHop)]


def show(packets: list[Packet]) -> None:
    """Prints the packets as a run would have, for a test that fails."""
    text = TextOutput(verbose=True)
    for packet in packets:
        text.packet(packet)


@pytest.mark.parametrize(
    ("address", "port", "ns", "hook", "service_address"),
    [
        pytest.param(topology.NODE4, NODE_PORT, "client", "INPUT", f"NodePort {NODE_PORT}", marks=pytest.mark.matrix),
        (CLUSTER_IP, PORT, "client", "INPUT", "cluster IP"),
        (CLUSTER_IP, PORT, "pod-a", "INPUT", "cluster IP"),
        (CLUSTER_IP, PORT, None, "OUTPUT", "cluster IP"),
    ],
    ids=["node-port", "cluster-ip", "from-a-pod", "from-the-node"],
)
def test_every_packet_names_virtual_and_real_server(
    watch: Watch, cluster: ClusterView, address: str, port: int, ns: str | None, hook: str, service_address: str
) -> None:
    with watch(Filter(ports=(port,)), nft=True) as seen:
        reply = traffic.http_get(address, port, ns=ns)
    assert reply.outcome == "answered", reply
    assert not seen.losses and all(p.complete for p in seen.packets)
    packets = [attribute(p, cluster) for p in seen.packets]
    show(packets)
    requests = [p for p in packets if p.endpoints.dport == port and p.endpoints.dst == address]
    assert len(requests) >= 4
    first, *later = requests
    (hop,) = ipvs(first)
    assert isinstance(hop, IpvsNatHop) and hop.hook == hook
    assert (hop.decision.virtual, hop.decision.virtual_port, hop.decision.protocol, hop.decision.scheduler) == (
        address,
        port,
        "tcp",
        "rr",
    )
    assert hop.decision.real in PODS and hop.decision.real_port == 8080
    assert (hop.decision.chosen, hop.decision.evidence, hop.evidence) == ("now", Evidence.OBSERVED, Evidence.OBSERVED)
    assert (hop.nat.kind, hop.nat.after.dst, hop.nat.after.dport) == ("DNAT", hop.decision.real, 8080)
    assert hop.owner and hop.owner.text.startswith(f"Service default/http-proxy, {service_address} -> pod default/"), hop.owner
    causes = [h.owner.cause for h in first.hops if isinstance(h, RewriteHop) and h.nat.kind == "MASQUERADE" and h.owner]
    assert causes == ([] if ns == "pod-a" else ["mark 0x4000 set by KUBE-MARK-MASQ for default/http-proxy"])
    for packet in later:
        (hop,) = ipvs(packet)
        assert isinstance(hop, IpvsHop) and (hop.decision.chosen, hop.decision.evidence) == (
            "earlier",
            Evidence.OBSERVED,
        ), packet
        assert hop.nat and hop.nat.after.dst == ipvs(first)[0].ipvs.real  # type: ignore[union-attr]
    for packet in requests:
        assert packet.hops[-1].netns.startswith("pod-"), [(h.kind, h.hook, h.netns) for h in packet.hops]
    answers = [p for p in packets if p.endpoints.sport == 8080 and p.endpoints.src in PODS]
    assert len(answers) >= 3
    for packet in answers:
        hops = [h for h in ipvs(packet) if isinstance(h, RewriteHop) and h.nat.kind == "reverse DNAT"]
        assert [(h.nat.after.src, h.nat.after.sport) for h in hops if isinstance(h, RewriteHop)] == [(address, port)], packet


def test_a_choice_made_before_the_trace(watch: Watch, cluster: ClusterView) -> None:
    with traffic.connections(topology.NODE4, NODE_PORT, 1) as (sock,):
        with watch(Filter(ports=(NODE_PORT,))) as seen:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert sock.recv(4096)
        chosen = {(h.decision.chosen, h.decision.evidence) for p in seen.packets for h in p.hops if isinstance(h, IpvsHop)}
        assert chosen == {("earlier", Evidence.DERIVED)}


def test_without_conntrack_both_directions_are_found(watch: Watch, cluster: ClusterView) -> None:
    """Then only IPVS knows that the answer belongs to the NodePort, and the request to the pod's port."""
    Path("/proc/sys/net/ipv4/vs/conntrack").write_text("0")
    try:
        for port in (NODE_PORT, 8080):
            with watch(Filter(ports=(port,))) as seen:
                assert traffic.http_get(topology.NODE4, NODE_PORT).outcome == "answered"
            assert not seen.losses
            kinds = {h.nat.kind for p in seen.packets for h in ipvs(p) if isinstance(h, RewriteHop)}
            assert kinds == {"DNAT", "reverse DNAT"}, port
            answers = [
                p for p in seen.packets if any(h.nat.kind == "reverse DNAT" for h in ipvs(p) if isinstance(h, RewriteHop))
            ]
            assert all(p.hops[-1].netns == "client" for p in answers), port
    finally:
        Path("/proc/sys/net/ipv4/vs/conntrack").write_text("1")


def test_a_removed_real_server(watch: Watch, cluster: ClusterView) -> None:
    """Its connections stay for a while, and IPVS drops their packets without a reason."""
    server = ["-t", f"{topology.NODE4}:{NODE_PORT}"]
    Path("/proc/sys/net/ipv4/vs/expire_nodest_conn").write_text("0")
    with traffic.connections(topology.NODE4, NODE_PORT, 1) as (sock,):
        for pod in topology.PODS:
            subprocess.run(["ipvsadm", "-d", *server, "-r", f"{pod.addr4}:8080"], check=True)
        try:
            with watch(Filter(ports=(NODE_PORT,))) as seen:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
        finally:
            for pod in topology.PODS:
                subprocess.run(["ipvsadm", "-a", *server, "-r", f"{pod.addr4}:8080", "-m"], check=True)
    dropped = [p for p in seen.packets if p.endpoints.dport == NODE_PORT and p.outcome == "dropped"]
    assert dropped and {p.verdict for p in dropped} == {"DROPPED by IPVS, which gives no reason"}


def test_no_real_server(watch: Watch, cluster: ClusterView) -> None:
    subprocess.run(["ipvsadm", "-A", "-t", f"{topology.NODE4}:31999", "-s", "wlc", "-p", "60"], check=True)
    with watch(Filter(ports=(31999,))) as seen:
        assert traffic.tcp_connect(topology.NODE4, 31999).outcome == "refused"
    subprocess.run(["ipvsadm", "-D", "-t", f"{topology.NODE4}:31999"], check=True)
    (packet,) = [p for p in seen.packets if p.tcp_flags == "SYN"]
    (hop,) = ipvs(packet)
    assert isinstance(hop, IpvsHop) and (
        hop.decision.scheduler,
        hop.decision.persistent,
        hop.decision.real,
    ) == ("wlc", True, "")
    server = f"TCP {topology.NODE4}:31999"
    assert packet.verdict == f"REJECTED by IPVS with icmp-port-unreachable: {server} has no real server available"
    assert packet.outcome == "rejected"


def test_real_servers_on_the_node_itself(watch: Watch, cluster: ClusterView) -> None:
    """Then the packet stays in INPUT and is delivered."""
    server = ["-t", f"{topology.NODE4}:31998"]
    subprocess.run(["ipvsadm", "-A", *server, "-s", "rr"], check=True)
    subprocess.run(["ipvsadm", "-a", *server, "-r", f"{topology.NODE4}:31997", "-m"], check=True)
    (child,) = servers.start([servers.Server(None, "on-node", http=31997, udp=None)])
    try:
        with watch(Filter(ports=(31998,))) as seen:
            assert traffic.http_get(topology.NODE4, 31998).outcome == "answered"
    finally:
        child.kill()
        subprocess.run(["ipvsadm", "-D", *server], check=True)
    requests = [p for p in seen.packets if p.endpoints.dport == 31998]
    assert requests and all(p.hops[-1].netns == "node" and p.outcome == "delivered" for p in requests), [
        p.verdict for p in requests
    ]
    assert {h.decision.real_port for p in requests for h in ipvs(p) if isinstance(h, IpvsHop)} == {31997}


def test_ipv6(watch: Watch, cluster: ClusterView) -> None:
    server = ["-t", f"[{topology.NODE6}]:31996"]
    subprocess.run(["ipvsadm", "-A", *server, "-s", "rr"], check=True)
    subprocess.run(["ipvsadm", "-a", *server, "-r", f"[{topology.PODS[1].addr6}]:8080", "-m"], check=True)
    try:
        with watch(Filter(ports=(31996,))) as seen:
            assert traffic.http_get(topology.NODE6, 31996).outcome == "answered"
    finally:
        subprocess.run(["ipvsadm", "-D", *server], check=True)
    kinds = [h.nat.kind for p in seen.packets for h in ipvs(p) if isinstance(h, RewriteHop)]
    assert kinds.count("DNAT") >= 4 and kinds.count("reverse DNAT") >= 3
    assert {(h.decision.virtual, h.decision.real) for p in seen.packets for h in ipvs(p) if isinstance(h, IpvsHop)} == {
        (topology.NODE6, topology.PODS[1].addr6)
    }
    assert all(p.complete for p in seen.packets) and not seen.losses
