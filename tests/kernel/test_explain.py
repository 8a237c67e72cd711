# SPDX-License-Identifier: Apache-2.0
"""What explain tells of a packet is what the kernel then does to it; and a table assembled from text is the kernel's own."""

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
from tests.kernel.test_nodes import SCENARIOS, doors
from tests.kernel.watching import Watch
from tests.support.nodes import node
from tracer.commands.explain import is_first_packet_of
from tracer.model.filter import Filter
from tracer.predict.compare import compare, steps
from tracer.predict.path import PathPredictor
from tracer.predict.query import PathQuery
from tracer.rules import inventory
from tracer.rules.backends import nft_loaded
from tracer.rules.iptables import sockopt
from tracer.rules.iptables.assemble import assemble
from tracer.rules.iptables.blob import BlobTable
from tracer.rules.iptables.encode import TEXT_REVISION

pytestmark = pytest.mark.thorough


@pytest.fixture
def plain(watch: Watch) -> Iterator[None]:
    """The scene's own rules are there again afterwards."""
    yield
    restored.plain()


@pytest.mark.parametrize("mode", [m for m in MODES if MODES[m] != "ipvs"])
def test_told_and_seen(watch: Watch, plain: None, mode: str) -> None:
    """Each Service, NodePort and hostPort of real nodes, asked for from outside, from the node and from a pod."""
    count, wrong = 0, []
    for scenario in SCENARIOS:
        here = node(mode, scenario)
        restored.put(here, MODES[mode])
        journey = PathPredictor(inventory.read(nft_loaded()))
        questions: dict[int, PathQuery] = {}
        with watch(Filter(protocol=6), nft=MODES[mode] != "legacy") as seen:
            for _, address, port, ns in [d for door in doors(here) for d in _from_everywhere(door)]:
                source = {topology.CLIENT: topology.CLIENT4, None: topology.NODE4}.get(ns, topology.PODS[2].addr4)
                sport = 41000 + len(questions)
                questions[sport] = PathQuery(source, sport, address, port)
                with suppress(PermissionError):  # the node's own packet was dropped or rejected
                    packets.send_tcp(address, port, src=source, sport=sport, flags=packets.SYN, ns=ns)
        for packet in seen.packets:
            question = questions.get(packet.endpoints.sport)
            if question and is_first_packet_of(packet, question):
                told = compare(journey.predict(question), packet)
                count += 1
                if told.difference:
                    wrong.append((scenario, question, told.difference))
                    print(*wrong[-1], *(f"    {s.where} {s.action} {s.rule}" for s in steps(packet)), sep="\n")
                del questions[packet.endpoints.sport]
        assert not questions or watch.lost, (scenario, questions)
    assert not wrong, wrong
    print(f"{mode}: {count} packets as explained")
    assert count >= 20


def _from_everywhere(door: tuple[str, str, int, str | None]) -> Iterator[tuple[str, str, int, str | None]]:
    label, address, port, ns = door
    yield label, address, port, ns
    yield label, address, port, topology.PODS[2].name
    if ns:
        yield label, address, port, None


@pytest.mark.parametrize("mode", [m for m in MODES if MODES[m] == "legacy"])
def test_an_assembled_table_is_the_kernels_own(node: None, plain: None, mode: str) -> None:
    from tests.support.nodes import node as recorded

    compared = 0
    for scenario in SCENARIOS:
        here = recorded(mode, scenario)
        restored.put(here, "legacy")
        ruleset = inventory.read(False).legacy
        assert ruleset
        for name in sockopt.present("ip"):
            kernels = BlobTable("ip", name, *sockopt.read("ip", name))
            mine, _ = assemble(ruleset, "ip", name)
            for chain in kernels.chains:
                for theirs, made in zip(kernels.rules(chain), mine.rules(chain), strict=True):
                    assert (made.header, made.goto) == (theirs.header, theirs.goto)
                    assert mine.target_name(made.at) == kernels.target_name(theirs.at)
                    for one, other in zip(made.matches, theirs.matches, strict=True):
                        assert one.name == other.name
                        if one.revision != TEXT_REVISION:
                            assert one.revision == other.revision
                            assert other.data.startswith(one.data.rstrip(b"\0")), (made, theirs)
                            compared += 1
    assert compared > 50


@pytest.fixture
def scene_again(node: None) -> Iterator[None]:
    """The scene is there again after an incident."""
    yield
    incidents.down()
    scene.up()


ASK = """import socket, sys
s = socket.socket()
s.settimeout(1)
try: s.connect((sys.argv[1], int(sys.argv[2])))
except OSError: pass"""


def live(source: str, address: str, port: int, form: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """`explain --live` on a connection that is tried once it watches. before: what a shell does first."""
    inside = ["ip", "netns", "exec", topology.CLIENT] if source == topology.CLIENT4 else []
    ask = [*inside, sys.executable, "-c", ASK, address, str(port)]
    if before:
        ask = ["sh", "-c", f'{before}; exec "$@"', "sh", *ask]
    command = [sys.executable, "-m", "tracer", "explain", "--from", source, "--to", f"{address}:{port}",
               "--objects", str(incidents.OBJECTS), "-o", form, "--live", "--", *ask]  # fmt: skip
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(ended.stderr, ended.stdout, sep="\n", flush=True)
    return ended


def test_the_command_compares_live(scene_again: None) -> None:
    """On the incident of the stale RETURN: as explained, and the finding's rule is on the way."""
    incidents.find(3).up("stale", "legacy")
    ended = live(topology.NODE4, "172.30.253.123", 8080, "json")
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    told = [line for line in lines if line["type"] == "compared"]
    assert ended.returncode == 0 and told and not any("difference" in line for line in told), ended
    stale = "! -s 192.168.64.0/20 -d 192.168.66.0/24 -j RETURN"
    assert any(stale in json.dumps(line) for line in lines if line["type"] == "explained"), "it is on the way that was told"


def test_the_command_says_that_a_nodeport_went_as_explained(scene_again: None) -> None:
    incidents.find(1).up("healthy", "legacy")
    ended = live(topology.CLIENT4, topology.NODE4, traffic.NODEPORT_HTTP, "text")
    told, _, met = ended.stdout.partition("=>  as explained")
    assert ended.returncode == 0 and met and "not as explained" not in ended.stdout, ended
    assert "one of 3 endpoints, each for 1/3 of all connections" in told and "NodePort 30285" in told


def test_the_command_says_the_first_difference(scene_again: None) -> None:
    """Somebody writes a rule after the way was told."""
    incidents.find(1).up("healthy", "legacy")
    drop = f"iptables-legacy -w -I FORWARD 1 -d {topology.PODS[0].addr4}/24 -p tcp -j DROP"
    ended = live(topology.CLIENT4, topology.NODE4, traffic.NODEPORT_HTTP, "text", drop)
    assert ended.returncode == 10 and "=>  not as explained: in FORWARD filter predicted ACCEPT" in ended.stdout, ended
    assert "seen DROP by FORWARD 1" in ended.stdout, ended.stdout
