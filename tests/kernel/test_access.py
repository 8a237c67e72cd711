# SPDX-License-Identifier: Apache-2.0
"""Tests every way to a Service or a pod with real packets, in every mode of kube-proxy: the owner of the deciding rule and the
owners of both ends must be right.

The rules of http-proxy, lonely-web, service-2048 and mysql-b were written by real kube-proxies and portmap; those of shop/cart
and shop/local are written here as kube-proxy does (access_rules.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from incidents import links
from scenes import servers, topology, traffic
from scenes.traffic import Reply
from tests.kernel import access_rules, restored
from tests.kernel.access_rules import BALANCER_IP, CART_IP, EXTERNAL_IP, LOCAL_PORT
from tests.kernel.watching import Watch
from tests.support import hop_fields
from tests.support.nodes import node
from tracer.kube.attribution import attribute
from tracer.kube.catalog import ClusterView
from tracer.model.filter import Filter
from tracer.model.hop import Hop, IpvsHop, RewriteHop, owner_of, verdict_of
from tracer.model.packet import Packet

MODES = ("1.36.2-iptables-legacy", "1.36.2-iptables-nft", "1.36.2-nftables-nft", "1.20.2-ipvs-nft")
HTTP_IP = traffic.CLUSTER_IP_HTTP
CLIENT, PROXY, CART = "external", "Service default/http-proxy", "Service shop/cart:web"


@dataclass(frozen=True)
class Way:
    """One way to a Service or a pod.

    Attributes:
        kind: Name of the way.
        scenario: Recorded node.
        address: Destination of the request.
        port: Destination port.
        ns: Namespace of the client, None = the node.
        src: Start of the source's owner.
        dst: Start of the destination's owner.
        rule_owner: Start of the deciding rule's owner.
        outcome: Outcome of the request.
        end: The packet's outcome, or the start of its verdict.
    """

    kind: str
    scenario: str
    address: str
    port: int
    ns: str | None
    src: str
    dst: str
    rule_owner: str
    outcome: str = "answered"
    end: str = "SYN answered by pid"

    def send(self) -> Reply:
        return traffic.http_get(self.address, self.port, ns=self.ns, timeout=1.5)


NODE = topology.NODE4
WAYS = (
    Way("cluster-ip", "S2-three", HTTP_IP, 8080, "pod-b", "pod default/http-proxy-b", f"{PROXY}, cluster IP",
        f"{PROXY}, cluster IP -> pod default/http-proxy-"),
    Way("cluster-ip-from-outside", "S2-three", HTTP_IP, 8080, "client", CLIENT, f"{PROXY}, cluster IP",
        f"{PROXY}, cluster IP -> pod default/http-proxy-"),
    Way("cluster-ip-from-the-node", "S2-three", HTTP_IP, 8080, None, "node node-1", f"{PROXY}, cluster IP",
        f"{PROXY}, cluster IP -> pod default/http-proxy-"),
    Way("node-port", "S2-three", NODE, 30285, "client", CLIENT, f"{PROXY}, NodePort 30285",
        f"{PROXY}, NodePort 30285 -> pod default/http-proxy-"),
    Way("external-ip", "S2-three", EXTERNAL_IP, 80, "client", CLIENT, f"{CART}, external IP",
        f"{CART}, external IP -> pod default/http-proxy-"),
    Way("load-balancer-ip", "S2-three", BALANCER_IP, 80, "client", CLIENT, f"{CART}, load balancer IP",
        f"{CART}, load balancer IP -> pod default/http-proxy-"),
    Way("local-only", "S2-three", NODE, LOCAL_PORT, "client", CLIENT, f"Service shop/local:web, NodePort {LOCAL_PORT}",
        f"Service shop/local:web, NodePort {LOCAL_PORT} -> pod default/http-proxy-a"),
    Way("hairpin", "S2-one", HTTP_IP, 8080, "pod-a", "pod default/http-proxy-a", f"{PROXY}, cluster IP",
        f"{PROXY}, cluster IP -> pod default/http-proxy-a"),
    Way("host-port", "S5", NODE, 3306, "client", CLIENT, "hostPort 3306 of pod default/mysql-b",
        "hostPort 3306 of pod default/mysql-b (portmap)"),
)  # fmt: skip


def refusals(back_end: str) -> tuple[Way, ...]:
    """Ways without an endpoint, or without an endpoint on this node."""
    lonely, game = "Service default/lonely-web:http, NodePort 30584", "Service 2048-game/service-2048, NodePort 30420"
    local = "rejected" if back_end == "ipvs" else "dropped"
    refused = "refused" if back_end == "ipvs" else "timeout"
    return (
        Way("no-endpoints", "S1", NODE, 30584, "client", CLIENT, lonely, lonely.partition(",")[0], "refused", "rejected"),
        Way("no-local-endpoints", "S4", NODE, 30420, "client", CLIENT, game, game.partition(",")[0], refused, local),
    )


@pytest.fixture(scope="module")
def mysql(watch: Watch) -> Iterator[None]:
    """The server in the pod with a hostPort."""
    links.ip(f"addr replace 10.224.0.1/24 dev {topology.BRIDGE}")
    (child,) = servers.start([servers.Server("pod-b", "mysql-b", http=3306, udp=None)])
    yield
    child.kill()
    links.ip(f"addr del 10.224.0.1/24 dev {topology.BRIDGE}", "-n pod-b addr flush to 10.224.0.0/24 dev eth0")


@pytest.fixture(scope="module", params=MODES)
def mode(watch: Watch, mysql: None, request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param
    restored.plain()


def in_force(mode: str, scenario: str, folder: Path) -> ClusterView:
    """Restores the node's rules; returns the view of its objects."""
    recorded_node = node(mode, scenario)
    restored.put(recorded_node, restored.MODES[mode])
    cluster = recorded_node.cluster_view(folder)
    for address in cluster.sandboxes.addresses("default", "mysql-b"):
        links.ip(f"-n pod-b addr replace {address}/24 dev eth0")
    if scenario == "S2-three":
        access_rules.add(restored.MODES[mode])
        cluster.store.load(access_rules.api_objects())
    return cluster


def describe(packet: Packet) -> str:
    lines = [f"{packet.src_owner and packet.src_owner.text} -> {packet.dst_owner and packet.dst_owner.text}: {packet.verdict}"]
    return "\n  ".join(
        lines
        + [
            f"{h.hook} {h.kind} {hop_fields.table(h)} {verdict_of(h)} {owner_of(h) and hop_fields.owner(h).text}"
            for h in packet.hops
        ]
    )


def first_packets(watch: Watch, cluster: ClusterView, ways: Iterable[Way], back_end: str) -> dict[str, Packet]:
    """Sends one request in each way; returns the first packet of each, by kind."""
    ways = list(ways)
    with watch(Filter(protocol=6), nft=back_end != "legacy") as seen:
        replies = [way.send() for way in ways]
    assert [r.outcome for r in replies] == [way.outcome for way in ways], list(zip(ways, replies, strict=True))
    first: dict[int, Packet] = {}
    for packet in seen.packets:
        if packet.tcp_flags == "SYN":
            first.setdefault(packet.endpoints.sport, packet)
    found = {way.kind: first[reply.sport] for way, reply in zip(ways, replies, strict=True)}
    return {kind: attribute(packet, cluster) for kind, packet in found.items()}


def deciding_hop(packet: Packet) -> Hop:
    """The hop that translated the packet, or that ended it."""
    ending = [h for h in packet.hops if verdict_of(h) in ("REJECT", "DROP") and owner_of(h)]
    rewrites = [h for h in packet.hops if isinstance(h, RewriteHop) and h.nat.kind == "DNAT"]
    return (ending or rewrites)[0]


def check(packet: Packet, way: Way) -> None:
    text = describe(packet)
    assert packet.complete, text
    assert packet.src_owner and packet.src_owner.text.startswith(way.src), text
    assert packet.dst_owner and packet.dst_owner.text.startswith(way.dst), text
    owner = owner_of(deciding_hop(packet))
    assert owner and owner.text.startswith(way.rule_owner), text
    assert way.end in (packet.outcome, packet.verdict[: len(way.end)]), text


def test_every_way_to_a_service_or_pod(watch: Watch, mode: str, tmp_path: Path) -> None:
    back_end, failed = restored.MODES[mode], []
    for scenario in ("S2-three", "S2-one", "S5", "S1", "S4"):
        cluster = in_force(mode, scenario, tmp_path)
        ways = [w for w in (*WAYS, *refusals(back_end)) if w.scenario == scenario]
        for way, packet in zip(ways, first_packets(watch, cluster, ways, back_end).values(), strict=True):
            print(f"{mode} {way.kind}: {describe(packet)}", flush=True)
            try:
                check(packet, way)
            except AssertionError as e:
                failed.append(f"{way.kind}: {e}")
    assert not failed, "\n\n".join(failed)


def test_which_requests_are_masqueraded(watch: Watch, mode: str, tmp_path: Path) -> None:
    """Hairpins and traffic from outside are masqueraded; with policy Local a pod of this node sees the client's address."""
    back_end, by_kind = restored.MODES[mode], {way.kind: way for way in WAYS}
    cluster = in_force(mode, "S2-three", tmp_path)
    found = first_packets(watch, cluster, [by_kind["local-only"], by_kind["load-balancer-ip"]], back_end)
    local, balanced = found.values()
    assert [h.nat.kind for h in local.hops if isinstance(h, RewriteHop)] == ["DNAT"], describe(local)
    (masquerade,) = [h for h in balanced.hops if isinstance(h, RewriteHop) and h.nat.kind == "MASQUERADE"]
    assert masquerade.owner and masquerade.owner.program == "kube-proxy", describe(balanced)
    assert "for shop/cart:web" in masquerade.owner.cause, describe(balanced)
    (hairpin,) = first_packets(watch, in_force(mode, "S2-one", tmp_path), [by_kind["hairpin"]], back_end).values()
    assert [h.nat.kind for h in hairpin.hops if isinstance(h, RewriteHop)] == ["DNAT", "MASQUERADE"], describe(hairpin)


def test_clients_keep_their_endpoint(watch: Watch, mode: str, tmp_path: Path) -> None:
    """Session affinity: four connections of one client go to one pod, and the owner of each names this pod."""
    back_end = restored.MODES[mode]
    cluster = in_force(mode, "S2-three", tmp_path)
    way = Way("affinity", "S2-three", CART_IP, 80, "client", CLIENT, f"{CART}, cluster IP", f"{CART}, cluster IP -> pod ")
    packets = first_packets(watch, cluster, [replace(way, kind=f"affinity {n}") for n in range(4)], back_end).values()
    for packet in packets:
        check(packet, way)
    owners = {hop_fields.owner(hop).target for hop in map(deciding_hop, packets) if owner_of(hop)}
    assert len(owners) == 1, owners
    if back_end == "ipvs":
        assert all(h.decision.persistent for p in packets for h in p.hops if isinstance(h, IpvsHop))
