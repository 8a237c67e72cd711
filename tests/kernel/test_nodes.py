# SPDX-License-Identifier: Apache-2.0
"""The rules of real nodes, restored here: a packet to each Service, NodePort and hostPort ends in a rule of that owner."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from scenes import packets, topology
from tests.kernel import restored
from tests.kernel.watching import Watch
from tests.support.nodes import Node, node, owners
from tracer.kube.attribution import attribute
from tracer.model.filter import Filter

SCENARIOS = os.environ.get("K8SNET_SCENARIOS", "S1 S2-one S2-three S3 S4 S5").split()
TARGET_COUNT = int(os.environ.get("K8SNET_DOORS", "0"))
"""Number of targets of a scenario that are requested, evenly spread; 0: all."""
READING_SECONDS = float(os.environ.get("K8SNET_READING_SECONDS", "0"))
"""Time before the first packet to read the rules, s: those of 2,000 Services (scenario big2000) take long in an emulator."""


@pytest.fixture
def restored_after(watch: Watch) -> Iterator[None]:
    yield
    restored.plain()


def targets(recorded_node: Node) -> Iterator[tuple[str, str, int, str | None]]:
    """(owner's label, address, port, source namespace) of all targets of TCP requests."""
    for service in (o for o in recorded_node.objects if o["kind"] == "Service"):
        meta, spec = service["metadata"], service["spec"]
        for port in spec.get("ports", []):
            label = f"{meta['namespace']}/{meta['name']}" + (f":{port['name']}" if port.get("name") else "")
            if port.get("protocol", "TCP") != "TCP" or label.startswith("default/kubernetes"):
                continue
            if port.get("nodePort"):
                yield label, topology.NODE4, port["nodePort"], topology.CLIENT
            if spec.get("clusterIP", "None") != "None":
                yield label, spec["clusterIP"], port["port"], None
    for pod in (o for o in recorded_node.objects if o["kind"] == "Pod"):
        for port in (p for c in pod["spec"]["containers"] for p in c.get("ports", []) if p.get("hostPort")):
            yield f"{pod['metadata']['namespace']}/{pod['metadata']['name']}", topology.NODE4, port["hostPort"], topology.CLIENT


@pytest.mark.parametrize("mode", restored.MODES)
def test_each_target_of_a_node_is_its_owners(watch: Watch, restored_after: None, mode: str, tmp_path: Path) -> None:
    requested = 0
    for scenario in SCENARIOS:
        recorded_node = node(mode, scenario)
        restored.put(recorded_node, restored.MODES[mode])
        known = recorded_node.cluster_view(tmp_path)
        expected: dict[int, str] = {}
        with watch(Filter(protocol=6), nft=restored.MODES[mode] != "legacy") as seen:
            time.sleep(READING_SECONDS)
            all_targets = list(targets(recorded_node))
            for label, address, port, ns in all_targets[:: max(1, len(all_targets) // TARGET_COUNT) if TARGET_COUNT else 1]:
                sport = 41000 + len(expected)
                expected[sport] = label
                source = topology.CLIENT4 if ns else topology.NODE4
                with suppress(PermissionError):  # the node's own packet was dropped or rejected
                    packets.send_tcp(address, port, src=source, sport=sport, flags=packets.SYN, ns=ns)
        named = {}
        for packet in seen.packets:
            if packet.tcp_flags == "SYN" and packet.endpoints.sport in expected:
                named[packet.endpoints.sport] = owners(attribute(packet, known), set(expected.values()))
        assert named == {sport: {label} for sport, label in expected.items()}, (scenario, [p.verdict for p in seen.packets])
        requested += len(expected)
    assert requested >= 10
