# SPDX-License-Identifier: Apache-2.0
"""Findings without an incident, each made with real packets: the expected finding is found, and no other."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from incidents import objects
from scenes import nfnetlink, packets, rules, scene, servers, topology
from scenes import traffic as ask
from scenes.netns import entered
from tests.kernel import incident_runs, question_scenes
from tests.kernel.watching import Watch
from tracer.findings import Findings
from tracer.findings.context import FindingContext
from tracer.kube.attribution import attribute
from tracer.model.filter import Filter
from tracer.model.finding import Finding

pytestmark = pytest.mark.thorough

CONNTRACK = Path("/proc/sys/net/netfilter/nf_conntrack_max")


@pytest.fixture(autouse=True)
def restored_scene(watch: Watch) -> Iterator[None]:
    scene.up()
    limit = CONNTRACK.read_text()
    yield
    CONNTRACK.write_text(limit)
    scene.up()


def cluster(ends: tuple[str, ...] = ("a", "b", "c"), ready: bool = True) -> list[dict[str, Any]]:
    """The objects of the scene; ends: the pods that exist."""
    pods = [p for p in topology.PODS if p.name[-1] in ends]
    slices = [objects.endpoints("default/http-proxy", [(p.name, p.addr4, "node-1") for p in pods], 8080),
              objects.endpoints("default/lonely-web", [("web-1", "10.244.0.77", "node-1")], 80, "http")]  # fmt: skip
    for each in slices[1 - ready :][:1] if not ready else []:
        each["endpoints"][0]["conditions"]["ready"] = False
    return [
        objects.node("node-1", topology.NODE4, "10.244.0.0/24"),
        objects.service("default/http-proxy", ask.CLUSTER_IP_HTTP, 8080, ask.NODEPORT_HTTP),
        objects.service("default/lonely-web", "172.30.10.84", 80, ask.NODEPORT_LONELY, "http"),
        slices[0], *([] if ready else slices[1:]),
        *(objects.pod(f"default/{p.name}", p.addr4, "node-1", 8080) for p in pods),
    ]  # fmt: skip


def find(
    watch: Watch, packet_filter: Filter, traffic: Callable[[], object], cluster_objects: list[dict[str, Any]]
) -> list[Finding]:
    known = incident_runs.cluster_view(cluster_objects)
    with watch(packet_filter) as seen:
        traffic()
    findings = Findings(FindingContext(known))
    for packet in seen.packets:
        findings.look(attribute(packet, known))
    print([(p.tcp_flags, p.verdict) for p in seen.packets], *(f"{f.name}: {f.cause}" for f in findings.all), sep="\n")
    return findings.all


def names(findings: list[Finding]) -> list[tuple[str, bool]]:
    return [(f.name, f.certain) for f in findings]


def test_an_administrators_drop(watch: Watch) -> None:
    rules.restore_text("*filter\n-I FORWARD -s 192.168.56.1/32 -d 10.244.0.0/24 -j DROP\nCOMMIT\n", 4, "legacy", flush=False)
    found = find(
        watch,
        Filter(ports=(ask.NODEPORT_HTTP,)),
        lambda: ask.tcp_connect(topology.NODE4, ask.NODEPORT_HTTP, timeout=0.4),
        cluster(),
    )
    assert names(found) == [("dropped_by_rule", True)] and "A rule of the administrator drops packets" in found[0].cause


def test_a_loopback_address_from_elsewhere(watch: Watch) -> None:
    found = find(watch, Filter(ports=(question_scenes.MARTIAN_PORT,)), question_scenes.send_martian, cluster())
    assert names(found) == [("martian_localnet", True)]


def test_a_full_table(watch: Watch) -> None:
    nfnetlink.conntrack_flush()
    with ask.connections(topology.PODS[0].addr4, 8080, 12):
        # Entries that are not assured would be replaced by others: the limit is below the number of assured ones.
        time.sleep(0.3)
        CONNTRACK.write_text("6")
        found = find(
            watch,
            Filter(ports=(ask.NODEPORT_HTTP,)),
            lambda: ask.tcp_connect(topology.NODE4, ask.NODEPORT_HTTP, timeout=0.5),
            cluster(),
        )
    assert names(found) == [("conntrack_full", True)]


def test_a_connection_to_a_removed_pod(watch: Watch) -> None:
    with ask.connections(topology.NODE4, ask.NODEPORT_HTTP, 6) as socks:

        def go_on() -> None:
            for sock in socks:
                sock.send(b"x")

        found = find(watch, Filter(ports=(ask.NODEPORT_HTTP,)), go_on, cluster(ends=()))
        assert names(found) and set(names(found)) == {("stale_conntrack", True)}
        assert find(watch, Filter(ports=(ask.NODEPORT_HTTP,)), go_on, cluster()) == [], "its pods exist"


def test_pods_that_are_not_ready(watch: Watch) -> None:
    found = find(
        watch,
        Filter(ports=(ask.NODEPORT_LONELY,)),
        lambda: ask.tcp_connect(topology.NODE4, ask.NODEPORT_LONELY, timeout=0.5),
        cluster(ready=False),
    )
    assert names(found) == [("endpoint_not_ready", True)]


def test_a_pod_that_connects_to_itself(watch: Watch) -> None:
    text = "\n".join(line for line in rules.read("http-proxy").splitlines() if "-A POSTROUTING" not in line) + "\n"
    rules.flush()
    rules.restore_text(text, 4, "legacy")

    def send() -> None:
        for n in range(40):
            packets.send_tcp(
                ask.CLUSTER_IP_HTTP, 8080, src=topology.PODS[0].addr4, sport=45000 + n, flags=packets.SYN, ns="pod-a"
            )

    found = find(watch, Filter(ports=(8080,)), send, cluster())
    assert set(names(found)) == {("hairpin_without_masquerade", True)}


def test_a_packet_too_long(watch: Watch) -> None:
    question_scenes.small_bridge()
    found = find(watch, Filter(ports=(servers.UDP_PORT,)), question_scenes.send_too_long, cluster())
    assert names(found) == [("mtu", True)] and "is too long for cni0, whose MTU is 1000" in found[0].cause


SLOW_PORT = 9140


@pytest.mark.parametrize("reads", [False, True])
def test_a_process_that_reads_too_slowly(watch: Watch, reads: bool) -> None:
    """With the healthy twin: the same datagrams, and a process that reads each of them."""
    pod = topology.PODS[0]
    with entered(pod.name):
        server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server.bind((pod.addr4, SLOW_PORT))

        def send() -> None:
            for _ in range(12):
                client.sendto(bytes(1000), (pod.addr4, SLOW_PORT))
                if reads:
                    server.recv(2000)

        found = find(watch, Filter(ports=(SLOW_PORT,)), send, cluster())
    assert names(found) == ([] if reads else [("rcvbuf_full", True)])
    if found:
        place = f"UDP socket {pod.addr4}:{SLOW_PORT} in {pod.name}"
        assert f"(pid {os.getpid()}) reads too slowly from its {place}" in found[0].cause and found[0].packets >= 5
