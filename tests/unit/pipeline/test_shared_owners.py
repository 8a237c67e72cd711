# SPDX-License-Identifier: Apache-2.0
"""Owners of packets on shared paths are those that are found for each packet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.builders import Ends, Trail, swapped
from tests.support.shared_paths import assembled, delivered, forwarded, rows_of
from tracer.kube import attribution
from tracer.kube.catalog import ClusterView
from tracer.kube.cni_cache import CniCache
from tracer.kube.owner_resolver import ObjectSource, OwnerResolver
from tracer.kube.selectors import Selectors
from tracer.kube.store import ObjectStore
from tracer.model.filter import Filter
from tracer.model.packet import Packet
from tracer.packets.shared_path import shared_hops
from tracer.pipeline.shared_owners import SharedOwners
from tracer.render.parts.json_template import JsonTemplates, packet_line

ADDRESS = "10.96.0.7"


def service(name: str, port: int, node_port: int = 0, address: str = ADDRESS) -> dict[str, Any]:
    one = {"name": "http", "port": port, "protocol": "TCP", "targetPort": 8080} | ({"nodePort": node_port} if node_port else {})
    spec = {"clusterIP": address, "clusterIPs": [address], "ports": [one], "type": "NodePort" if node_port else "ClusterIP"}
    return {"kind": "Service", "metadata": {"name": name, "namespace": "shop"}, "spec": spec}


def pod(name: str, address: str, host_port: int = 0) -> dict[str, Any]:
    ports = [{"containerPort": 80, "hostPort": host_port, "protocol": "TCP"}] if host_port else []
    return {
        "kind": "Pod", "metadata": {"name": name, "namespace": "shop"}, "status": {"podIP": address, "phase": "Running"},
        "spec": {"nodeName": "node-1", "containers": [{"name": "one", "ports": ports}]},
    }  # fmt: skip


def resolver(*objects: dict[str, Any], local: frozenset[str] = frozenset(), sandboxes: CniCache | None = None) -> OwnerResolver:
    store = ObjectStore("node-1")
    store.load(objects)
    view = ClusterView(store, sandboxes or CniCache(()), local)
    return OwnerResolver(ObjectSource(none=True, known=lambda: view, replayed=True), Selectors(), Filter())


def packets_of(*trails: Trail) -> list[Packet]:
    found, assembler = assembled([rows_of(*trails)], True)
    assert assembler.shared
    return found


def compared(kube: OwnerResolver, packets: list[Packet]) -> list[Packet]:
    """The packets with the owners that are found once for a path, which must be those of each packet; also in JSON."""
    owners, lines = SharedOwners(kube), JsonTemplates()
    found = [owners.attribute(packet) for packet in packets]
    own = [attribution.attribute(packet, kube.cluster) for packet in packets]
    assert found == own and [repr(p) for p in found] == [repr(p) for p in own]
    for packet, same in zip(found, own, strict=True):
        hops = shared_hops(packet)
        assert (lines.line(packet, hops) if hops else packet_line(packet)) == packet_line(same)
    return found


def from_service_address(number: int, sport: int) -> Trail:
    """A packet of which the source is the address of a Service, as of a node that connects to its own kube-ipvs0."""
    ends: Ends = (ADDRESS, sport, "10.244.0.11", 8080)
    trail = Trail(ends, number << 8, 1_000_000_000 + number * 100_000, orig=ends, reply=swapped(ends), ct_info=2, pf=2)
    return trail.hook("PREROUTING", in_name="eth0").hook("POSTROUTING", out_name="eth1")


def test_found_once_for_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    kube = resolver(service("web", 80, 30285), pod("web-a", "10.244.0.11"), local=frozenset({"192.168.56.10"}))
    packets = packets_of(*(forwarded(n, 40000 + n, 20000 + n) for n in range(1, 6)))
    found = compared(kube, packets)
    assert {str(p.dst_owner and p.dst_owner.label) for p in found} == {"shop/web:http"}
    asked: list[int] = []

    def attribute(self: OwnerResolver, packet: Packet) -> Packet:
        asked.append(packet.identity)
        return packet

    monkeypatch.setattr(OwnerResolver, "attribute", attribute)
    owners = SharedOwners(kube)
    for packet in packets:
        owners.attribute(packet)
    assert asked == [packets[0].identity, packets[1].identity]


def test_an_owner_that_names_the_chosen_port() -> None:
    """The address is a Service's, the port is not: the owner's text has the port of the packet."""
    packets = packets_of(*(from_service_address(n, 40000 + n) for n in range(1, 5)))
    found = compared(resolver(service("web", 80)), packets)
    assert [p.src_owner and p.src_owner.detail for p in found] == [f"which has no port {40000 + n}" for n in range(1, 5)]


@pytest.mark.parametrize(
    "objects",
    [
        (service("web", 80, 30285), service("other", 81, 40002, "10.96.0.8")),
        (service("web", 80, 30285), service("other", 40002, address="192.168.56.1")),
        (service("web", 80, 30285), pod("agent", "192.168.56.10", 40002)),
    ],
    ids=["NodePort", "Service", "hostPort"],
)
def test_a_chosen_port_that_an_object_has(objects: tuple[dict[str, Any], ...]) -> None:
    local = frozenset({"192.168.56.10", "192.168.56.1"})
    packets = packets_of(*(forwarded(n, 40000 + n % 4) for n in range(1, 9)))
    found = compared(resolver(*objects, local=local), packets)
    sources = {p.endpoints.sport: p.src_owner for p in found}
    assert sources[40002] not in (sources[40001], sources[40003])


def test_objects_that_change() -> None:
    kube = resolver(service("web", 80, 30285), local=frozenset({"192.168.56.10"}))
    owners, packets = SharedOwners(kube), packets_of(*(forwarded(n, 40000 + n) for n in range(1, 9)))
    for n, packet in enumerate(packets):
        if n == 4:
            kube.cluster.store.load([service("shop", 80, 30285)])
        assert owners.attribute(packet) == attribution.attribute(packet, kube.cluster)
    kube.cluster.store.load([])
    assert owners.attribute(packets[-1]) == attribution.attribute(packets[-1], kube.cluster)


def test_look_ups_in_the_cni_cache_are_counted(tmp_path: Path) -> None:
    """A capture places a reading of the cache by the number of look-ups in its batch."""
    counts = []
    packets = packets_of(*(delivered(n, 40000 + n) for n in range(1, 9)))
    for is_sharing in (False, True):
        cache = CniCache((tmp_path,))
        kube = resolver(service("web", 80), sandboxes=cache)
        owners = SharedOwners(kube)
        for packet in packets:
            (owners if is_sharing else kube).attribute(packet)
        counts.append(cache.lookups)
    assert counts[0] == counts[1] > 0


def test_the_cni_cache_is_read_again_for_a_shared_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that the cache did not have is looked for again after the interval, also by a packet of a known path."""
    now = [1000.0]
    monkeypatch.setattr("tracer.kube.cni_cache.time.monotonic", lambda: now[0])
    cache = CniCache((tmp_path,))
    owners, packets = SharedOwners(resolver(sandboxes=cache)), packets_of(*(delivered(n, 40000 + n) for n in range(1, 6)))
    scans: list[float] = []

    def scan() -> None:
        cache._last_scan = now[0]
        scans.append(now[0])

    monkeypatch.setattr(cache, "_scan", scan)
    for packet in packets[:4]:
        owners.attribute(packet)
    assert scans == []
    now[0] += 2
    owners.attribute(packets[4])
    assert scans == [1002.0]
