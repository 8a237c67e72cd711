# SPDX-License-Identifier: Apache-2.0
"""Audits the incidents without any packet: rules, objects and sockets show the fault, and nothing is found on healthy twins."""

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
from tracer.node.nfnetlink import nft_loaded
from tracer.rules import inventory

pytestmark = pytest.mark.thorough

EXPECTED = {
    (1, "refused"): 1, (1, "silent"): 1, (1, "both"): 2, (3, "stale"): 1, (4, "host-name"): 1, (4, "flag-not-heeded"): 1,
    (4, "newer"): 1, (5, "ipvs"): 1, (5, "anywhere"): 2, (5, "node-port"): 1,
    (5, "nftables"): 1, (5, "nftables-restarted"): 1,
}  # fmt: skip
"""Expected number of the incident's findings; 0 where it is not listed. Incident 2 can only be found with packets."""
CASES = [(i.number, state, backend) for backend in BACKENDS for i in incidents.every() for state in i.states_in(backend)]

VARIED = [v for n in (1, 3, 4, 5) for v in variations.variations(n) if v.backend == "native" or v.family == 6]


@pytest.fixture(scope="module", autouse=True)
def plain_scene(node: None) -> Iterator[None]:
    yield
    incidents.down()
    scene.up()


def incident_findings(number: int, state: str, backend: Backend) -> list[Finding]:
    return audit_findings(incidents.find(number).up(state, backend))


def audit_findings(objects: list[Object]) -> list[Finding]:
    view = incident_runs.cluster_view(objects)
    rules_now = inventory.read(nft_loaded())
    assert not rules_now.unread
    return audit(NodeState(FindingContext(view), rules_now))


@pytest.mark.parametrize(("number", "state", "backend"), CASES, ids=["-".join(map(str, case)) for case in CASES])
def test_incident(number: int, state: str, backend: Backend) -> None:
    findings = incident_findings(number, state, backend)
    text = "\n".join(f"{f.name} {f.certain}: {f.cause}" for f in findings)
    print(text)
    expected = [(incidents.find(number).finding, True)] * EXPECTED.get((number, state), 0)
    assert [(f.name, f.certain) for f in findings] == expected, text


@pytest.mark.parametrize("variation", VARIED, ids=lambda v: f"{v.incident}-{v.number}-{v.backend}")
def test_variation(variation: Variation) -> None:
    """kube-proxy's own nftables tables, and IPv6: the same findings without packets as with packets."""
    findings = audit_findings(varied.up(variation))
    text = "\n".join(f"{f.name} {f.certain}: {f.cause}" for f in findings)
    print(variation.text, text, sep="\n")
    assert [(f.name, f.certain) for f in findings] == [(variation.finding, True)] * variation.expected, text


def test_the_command_and_its_exit_status() -> None:
    incidents.find(3).up("stale", "legacy")
    command = [sys.executable, "-m", "tracer", "audit", "--objects", str(incidents.OBJECTS)]
    done = subprocess.run([*command, "-o", "json"], cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 10 and [line["type"] for line in lines] == ["finding", "audit"], done
    texts = [p["text"] for p in lines[0]["proofs"]]
    assert any(text.startswith("192.168.66.0/24 is reached via 192.168.66.0 dev flannel.1") for text in texts), texts
    incidents.find(3).up("healthy", "legacy")
    before = rules.counters("legacy")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "") and "nothing found" in done.stdout, done
    assert set(rules.counters("legacy")) == set(before), "no rule was written or removed"
