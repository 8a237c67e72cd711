"""What explain tells of a packet is what the kernel then does to it; and a table assembled from text is the kernel's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import incidents
from scenes import packets, rules, scene, topology
from tests.kernel import restored
from tests.kernel.conftest import ROOT
from tests.kernel.restored import MODES
from tests.kernel.test_nodes import SCENARIOS, doors
from tests.kernel.watching import Watch
from tests.nodes import node
from tracer.backends import nft_loaded
from tracer.explain.command import asked
from tracer.explain.compare import compare, steps
from tracer.explain.journey import Journey
from tracer.explain.question import Question
from tracer.filters import Filter
from tracer.rules import installed, sockopt
from tracer.rules.assemble import assemble
from tracer.rules.blob import BlobTable
from tracer.rules.packed import WORDS

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
        journey = Journey(installed.read(nft_loaded()))
        questions: dict[int, Question] = {}
        with watch(Filter(protocol=6), nft=MODES[mode] != "legacy") as seen:
            for _, address, port, ns in [d for door in doors(here) for d in _from_everywhere(door)]:
                source = {topology.CLIENT: topology.CLIENT4, None: topology.NODE4}.get(ns, topology.PODS[2].addr4)
                sport = 41000 + len(questions)
                questions[sport] = Question(source, sport, address, port)
                with suppress(PermissionError):  # the node's own packet was dropped or rejected
                    packets.send_tcp(address, port, src=source, sport=sport, flags=packets.SYN, ns=ns)
        for packet in seen.packets:
            question = questions.get(packet.endpoints.sport)
            if question and asked(packet, question):
                told = compare(journey.stories(question), packet)
                count += 1
                if told.difference:
                    wrong.append((scenario, question, told.difference))
                    print(*wrong[-1], *(f"    {s.where} {s.told} {s.rule}" for s in steps(packet)), sep="\n")
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
    from tests.nodes import node as recorded

    compared = 0
    for scenario in SCENARIOS:
        here = recorded(mode, scenario)
        restored.put(here, "legacy")
        ruleset = installed.read(False).legacy
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
                        if one.revision != WORDS:
                            assert one.revision == other.revision
                            assert other.data.startswith(one.data.rstrip(b"\0")), (made, theirs)
                            compared += 1
    assert compared > 50


def test_the_command_compares_live(node: None, tmp_path: Path) -> None:
    """On the incident of the stale RETURN: as explained, and the finding's rule is on the way."""
    try:
        incident = incidents.find(3)
        incident.up("stale", "legacy")
        ask = [sys.executable, "-c", "import socket; s = socket.socket(); s.settimeout(1)\n"
               "try: s.connect(('172.30.253.123', 8080))\nexcept OSError: pass"]  # fmt: skip
        command = [sys.executable, "-m", "tracer", "explain", "--from", topology.NODE4, "--to", "172.30.253.123:8080",
                   "--objects", str(incidents.OBJECTS), "-o", "json", "--live", "--", *ask]  # fmt: skip
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        lines = [json.loads(line) for line in ended.stdout.splitlines()]
        told = [line for line in lines if line["type"] == "compared"]
        assert ended.returncode == 0 and told and not any("difference" in line for line in told), ended
        stale = "! -s 192.168.64.0/20 -d 192.168.66.0/24 -j RETURN"
        assert any(stale in json.dumps(line) for line in lines if line["type"] == "explained"), "it is on the way that was told"
    finally:
        incidents.down()
        scene.up()
        rules.restore("http-proxy", "http-proxy-v6")
