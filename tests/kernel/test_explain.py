# SPDX-License-Identifier: Apache-2.0
"""The kernel treats a packet as explain has predicted; and a table assembled from text equals the kernel's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

import incidents
from scenes import packets, scene, topology, traffic
from tests.kernel import restored
from tests.kernel.conftest import ROOT
from tests.kernel.restored import MODES
from tests.kernel.test_nodes import SCENARIOS, targets
from tests.kernel.watching import Watch
from tests.support.nodes import node
from tracer.commands.explain import is_first_packet_of
from tracer.model.filter import Filter
from tracer.node.nfnetlink import nft_loaded
from tracer.predict.compare import compare, steps
from tracer.predict.path import PathPredictor
from tracer.predict.query import PathQuery
from tracer.rules import inventory
from tracer.rules.iptables import sockopt
from tracer.rules.iptables.assemble import assemble
from tracer.rules.iptables.blob import BlobTable
from tracer.rules.iptables.encode import TEXT_REVISION

pytestmark = pytest.mark.thorough


@pytest.fixture
def plain_rules(watch: Watch) -> Iterator[None]:
    """Restores the scene's own rules afterwards."""
    yield
    restored.plain()


@pytest.mark.parametrize("mode", [m for m in MODES if MODES[m] != "ipvs"])
def test_predicted_equals_observed(watch: Watch, plain_rules: None, mode: str) -> None:
    """Each Service, NodePort and hostPort of real nodes, requested from outside, from the node and from a pod."""
    count, wrong = 0, []
    for scenario in SCENARIOS:
        recorded_node = node(mode, scenario)
        restored.put(recorded_node, MODES[mode])
        predictor = PathPredictor(inventory.read(nft_loaded()))
        queries: dict[int, PathQuery] = {}
        with watch(Filter(protocol=6), nft=MODES[mode] != "legacy") as seen:
            for _, address, port, ns in [d for target in targets(recorded_node) for d in _from_all_sources(target)]:
                source = {topology.CLIENT: topology.CLIENT4, None: topology.NODE4}.get(ns, topology.PODS[2].addr4)
                sport = 41000 + len(queries)
                queries[sport] = PathQuery(source, sport, address, port)
                with suppress(PermissionError):  # the node's own packet was dropped or rejected
                    packets.send_tcp(address, port, src=source, sport=sport, flags=packets.SYN, ns=ns)
        for packet in seen.packets:
            query = queries.get(packet.endpoints.sport)
            if query and is_first_packet_of(packet, query):
                comparison = compare(predictor.predict(query), packet)
                count += 1
                if comparison.difference:
                    wrong.append((scenario, query, comparison.difference))
                    print(*wrong[-1], *(f"    {s.where} {s.action} {s.rule}" for s in steps(packet)), sep="\n")
                del queries[packet.endpoints.sport]
        assert not queries or watch.lost, (scenario, queries)
    assert not wrong, wrong
    print(f"{mode}: {count} packets as explained")
    assert count >= 20


def _from_all_sources(target: tuple[str, str, int, str | None]) -> Iterator[tuple[str, str, int, str | None]]:
    label, address, port, ns = target
    yield label, address, port, ns
    yield label, address, port, topology.PODS[2].name
    if ns:
        yield label, address, port, None


@pytest.mark.parametrize("mode", [m for m in MODES if MODES[m] == "legacy"])
def test_an_assembled_table_is_the_kernels_own(node: None, plain_rules: None, mode: str) -> None:
    from tests.support.nodes import node as recorded

    compared = 0
    for scenario in SCENARIOS:
        recorded_node = recorded(mode, scenario)
        restored.put(recorded_node, "legacy")
        ruleset = inventory.read(False).legacy
        assert ruleset
        for name in sockopt.present("ip"):
            kernel_table = BlobTable("ip", name, *sockopt.read("ip", name))
            assembled, _ = assemble(ruleset, "ip", name)
            for chain in kernel_table.chains:
                for kernel_rule, made in zip(kernel_table.rules(chain), assembled.rules(chain), strict=True):
                    assert (made.header, made.goto) == (kernel_rule.header, kernel_rule.goto)
                    assert assembled.target_name(made.at) == kernel_table.target_name(kernel_rule.at)
                    for one, other in zip(made.matches, kernel_rule.matches, strict=True):
                        assert one.name == other.name
                        if one.revision != TEXT_REVISION:
                            assert one.revision == other.revision
                            assert other.data.startswith(one.data.rstrip(b"\0")), (made, kernel_rule)
                            compared += 1
    assert compared > 50


@pytest.fixture
def restored_scene(node: None) -> Iterator[None]:
    """Restores the scene after an incident."""
    yield
    incidents.down()
    scene.up()


ASK = """import socket, sys
s = socket.socket()
s.settimeout(1)
try: s.connect((sys.argv[1], int(sys.argv[2])))
except OSError: pass"""


def live(source: str, address: str, port: int, form: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """`explain --live` on a connection that is tried once the probes are attached. before: shell commands that run first."""
    inside = ["ip", "netns", "exec", topology.CLIENT] if source == topology.CLIENT4 else []
    ask = [*inside, sys.executable, "-c", ASK, address, str(port)]
    if before:
        ask = ["sh", "-c", f'{before}; exec "$@"', "sh", *ask]
    command = [sys.executable, "-m", "tracer", "explain", "--from", source, "--to", f"{address}:{port}",
               "--objects", str(incidents.OBJECTS), "-o", form, "--live", "--", *ask]  # fmt: skip
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(ended.stderr, ended.stdout, sep="\n", flush=True)
    return ended


def test_live_goes_as_explained(restored_scene: None) -> None:
    """On the incident of the stale RETURN: the packet goes as explained, and the finding's rule is on its path."""
    incidents.find(3).up("stale", "legacy")
    ended = live(topology.NODE4, "172.30.253.123", 8080, "json")
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    compared = [line for line in lines if line["type"] == "compared"]
    assert ended.returncode == 0 and compared and not any("difference" in line for line in compared), ended
    stale = "! -s 192.168.64.0/20 -d 192.168.66.0/24 -j RETURN"
    assert any(stale in json.dumps(line) for line in lines if line["type"] == "explained"), (
        "the rule must be on the predicted path"
    )


def test_live_reports_that_a_nodeport_goes_as_explained(restored_scene: None) -> None:
    incidents.find(1).up("healthy", "legacy")
    ended = live(topology.CLIENT4, topology.NODE4, traffic.NODEPORT_HTTP, "text")
    predicted, _, met = ended.stdout.partition("=>  as explained")
    assert ended.returncode == 0 and met and "not as explained" not in ended.stdout, ended
    assert "one of 3 endpoints, each for 1/3 of all connections" in predicted and "NodePort 30285" in predicted


def test_live_reports_the_first_difference(restored_scene: None) -> None:
    """A rule is added after the path was predicted."""
    incidents.find(1).up("healthy", "legacy")
    drop = f"iptables-legacy -w -I FORWARD 1 -d {topology.PODS[0].addr4}/24 -p tcp -j DROP"
    ended = live(topology.CLIENT4, topology.NODE4, traffic.NODEPORT_HTTP, "text", drop)
    assert ended.returncode == 10 and "=>  not as explained: in FORWARD filter predicted ACCEPT" in ended.stdout, ended
    assert "seen DROP by FORWARD 1" in ended.stdout, ended.stdout
