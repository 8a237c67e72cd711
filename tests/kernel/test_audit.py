# SPDX-License-Identifier: Apache-2.0
"""The audit on the incidents, without a packet: what rules, objects and sockets show, and nothing on the healthy twins."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

import incidents
from incidents import variations, varied
from incidents.objects import Object
from incidents.variations import Variation
from scenes import rules, scene
from scenes.rules import BACKENDS, Backend
from tests.kernel import incident_runs
from tests.kernel.conftest import ROOT
from tracer.audit import audit
from tracer.audit.state import NodeState
from tracer.findings.context import FindingContext
from tracer.model.finding import Finding
from tracer.rules import inventory
from tracer.rules.backends import nft_loaded

pytestmark = pytest.mark.thorough

EXPECTED = {
    (1, "refused"): 1, (1, "silent"): 1, (1, "both"): 2, (3, "stale"): 1, (4, "host-name"): 1, (4, "flag-not-heeded"): 1,
    (4, "newer"): 1, (5, "ipvs"): 1, (5, "anywhere"): 2, (5, "node-port"): 1,
    (5, "nftables"): 1, (5, "nftables-restarted"): 1,
}  # fmt: skip
"""How often the incident's finding is found; never where it is not listed. Incident 2 needs packets to be seen."""
CASES = [(i.number, state, backend) for backend in BACKENDS for i in incidents.every() for state in i.states_in(backend)]

VARIED = [v for n in (1, 3, 4, 5) for v in variations.variations(n) if v.backend == "native" or v.family == 6]


@pytest.fixture(scope="module", autouse=True)
def plain_scene(node: None) -> Iterator[None]:
    yield
    incidents.down()
    scene.up()


def found(number: int, state: str, backend: Backend) -> list[Finding]:
    return looked(incidents.find(number).up(state, backend))


def looked(objects: list[Object]) -> list[Finding]:
    known = incident_runs.known(objects)
    rules_now = inventory.read(nft_loaded())
    assert not rules_now.unread
    return audit(NodeState(FindingContext(known), rules_now))


@pytest.mark.parametrize(("number", "state", "backend"), CASES, ids=["-".join(map(str, case)) for case in CASES])
def test_incident(number: int, state: str, backend: Backend) -> None:
    told = found(number, state, backend)
    said = "\n".join(f"{f.name} {f.certain}: {f.cause}" for f in told)
    print(said)
    expected = [(incidents.find(number).finding, True)] * EXPECTED.get((number, state), 0)
    assert [(f.name, f.certain) for f in told] == expected, said


@pytest.mark.parametrize("variation", VARIED, ids=lambda v: f"{v.incident}-{v.number}-{v.backend}")
def test_variation(variation: Variation) -> None:
    """kube-proxy's own nftables tables, and IPv6: without a packet the same findings as with packets."""
    told = looked(varied.up(variation))
    said = "\n".join(f"{f.name} {f.certain}: {f.cause}" for f in told)
    print(variation.text, said, sep="\n")
    assert [(f.name, f.certain) for f in told] == [(variation.finding, True)] * variation.expected, said


def test_the_command_and_its_exit_status() -> None:
    incidents.find(3).up("stale", "legacy")
    command = [sys.executable, "-m", "tracer", "audit", "--objects", str(incidents.OBJECTS)]
    ended = subprocess.run([*command, "-o", "json"], cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == 10 and [line["type"] for line in lines] == ["finding", "audit"], ended
    texts = [p["text"] for p in lines[0]["proofs"]]
    assert any(text.startswith("192.168.66.0/24 is reached via 192.168.66.0 dev flannel.1") for text in texts), texts
    incidents.find(3).up("healthy", "legacy")
    before = rules.counters("legacy")
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "") and "nothing found" in ended.stdout, ended
    assert set(rules.counters("legacy")) == set(before), "no rule was written or removed"
