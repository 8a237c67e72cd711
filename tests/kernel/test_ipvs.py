"""IPVS as kube-proxy of a real node had set it up: virtual server, chosen real server, both rewrites, refusals."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scenes import topology, traffic
from tests.kernel import restored
from tests.kernel.watching import Watch
from tests.nodes import node
from tracer.filters import Filter
from tracer.kube.explain import explain
from tracer.kube.known import Known
from tracer.model import Evidence, Hop, Packet
from tracer.render.text import Text

MODE = "1.20.2-ipvs-nft"
CLUSTER_IP, PORT, NODE_PORT = traffic.CLUSTER_IP_HTTP, 8080, 30285
PODS = {pod.addr4 for pod in topology.PODS}


@pytest.fixture(scope="module")
def known(watch: Watch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Known]:
    """A node whose kube-proxy runs in ipvs mode: http-proxy with three endpoints."""
    here = node(MODE, "S2-three")
    restored.put(here, "ipvs")
    yield here.known(tmp_path_factory.mktemp("cni"))
    restored.plain()


def ipvs(packet: Packet) -> list[Hop]:
    return [h for h in packet.hops if h.ipvs]


def show(packets: list[Packet]) -> str:
    """For a test that fails: what a user would have seen."""
    text = Text(verbose=True)
    for packet in packets:
        text.packet(packet)
    return ""


@pytest.mark.parametrize(
    ("address", "port", "ns", "hook", "whose"),
    [
        (topology.NODE4, NODE_PORT, "client", "INPUT", f"NodePort {NODE_PORT}"),
        (CLUSTER_IP, PORT, "client", "INPUT", "cluster IP"),
        (CLUSTER_IP, PORT, "pod-a", "INPUT", "cluster IP"),
        (CLUSTER_IP, PORT, None, "OUTPUT", "cluster IP"),
    ],
    ids=["node-port", "cluster-ip", "from-a-pod", "from-the-node"],
)
def test_every_packet_names_virtual_and_real_server(
    watch: Watch, known: Known, address: str, port: int, ns: str | None, hook: str, whose: str
) -> None:
    with watch(Filter(ports=(port,)), nft=True) as seen:
        reply = traffic.http_get(address, port, ns=ns)
    assert reply.outcome == "answered", reply
    assert not seen.losses and all(p.complete for p in seen.packets)
    for packet in seen.packets:
        explain(packet, known)
    show(seen.packets)
    there = [p for p in seen.packets if p.endpoints.dport == port and p.endpoints.dst == address]
    assert len(there) >= 4
    first, *later = there
    (hop,) = ipvs(first)
    assert hop.ipvs and hop.nat and hop.hook == hook
    assert (hop.ipvs.virtual, hop.ipvs.virtual_port, hop.ipvs.protocol, hop.ipvs.scheduler) == (address, port, "tcp", "rr")
    assert hop.ipvs.real in PODS and hop.ipvs.real_port == 8080
    assert (hop.ipvs.chosen, hop.ipvs.evidence, hop.evidence) == ("now", Evidence.OBSERVED, Evidence.OBSERVED)
    assert (hop.nat.kind, hop.nat.after.dst, hop.nat.after.dport) == ("DNAT", hop.ipvs.real, 8080)
    assert hop.owner and hop.owner.text.startswith(f"Service default/http-proxy:http1, {whose} -> pod default/"), hop.owner
    assert f"from {reply.body.split(' from ')[0]}" if reply.body else True
    for packet in later:
        (hop,) = ipvs(packet)
        assert hop.ipvs and (hop.ipvs.chosen, hop.ipvs.evidence) == ("earlier", Evidence.OBSERVED), packet
        assert hop.nat and hop.nat.after.dst == ipvs(first)[0].ipvs.real  # type: ignore[union-attr]
    for packet in there:
        assert packet.hops[-1].netns.startswith("pod-"), [(h.what, h.hook, h.netns) for h in packet.hops]
    back = [p for p in seen.packets if p.endpoints.sport == 8080 and p.endpoints.src in PODS]
    assert len(back) >= 3
    for packet in back:
        hops = [h for h in ipvs(packet) if h.nat and h.nat.kind == "reverse DNAT"]
        assert [(h.nat.after.src, h.nat.after.sport) for h in hops if h.nat] == [(address, port)], packet
