# SPDX-License-Identifier: Apache-2.0
"""The audit: each check has a test and a line of documentation; of each recorded node exactly its conflicts are reported."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import audits
from tests.support.nodes import MODES, nodes
from tests.support.sample_findings import FOUND, VALIDATOR
from tracer import render
from tracer.audit import audit, checks
from tracer.commands.audit import status

ROOT = Path(__file__).resolve().parents[3]
HOSTPORT_CONFLICT = ("hostport_takes_service", True)
BY_SCENARIO = {"S5-nodeport": [HOSTPORT_CONFLICT] * 2, "S5-nodeport-proxyrestart": [HOSTPORT_CONFLICT] * 2}
LARGE = "1.36.2-nftables-nft"
"""The mode for which the node with 2,000 Services is audited too."""
CASES = [(m, n.scenario) for m in MODES for n in nodes(m) if n.scenario != "big2000" or m == LARGE]


def test_every_check_has_a_test_and_a_line() -> None:
    names = [name for name, _ in checks()]
    assert len(names) >= 9
    page = (ROOT / "docs/audit.md").read_text()
    for name in names:
        assert (ROOT / f"tests/unit/audit/test_{name}.py").exists(), name
        assert f"`{name}`" in page or f"[{name}]" in page, name


@pytest.mark.parametrize(("mode", "scenario"), CASES)
def test_recorded_nodes(mode: str, scenario: str, tmp_path: Path) -> None:
    one = next(n for n in nodes(mode) if n.scenario == scenario)
    found = audit(audits.state(one, tmp_path))
    expected = BY_SCENARIO.get(scenario, [])
    if (mode, scenario) == ("1.20.2-ipvs-nft", "S5-nodeport"):
        expected = []  # recorded before kube-proxy had written anything for these Services
    assert [(f.name, f.certain) for f in found] == expected, [f.cause for f in found]
    assert all(f.packets == 0 and f.proofs and f.check and f.cure for f in found)


@pytest.mark.parametrize("mode", [m for m in MODES if "ipvs" not in m])
def test_hostports_and_nodeports_need_no_api(mode: str, tmp_path: Path) -> None:
    one = next(n for n in nodes(mode) if n.scenario == "S5-nodeport")
    found = audit(audits.state(one, tmp_path, with_api=False))
    assert [(f.name, f.certain) for f in found] == [HOSTPORT_CONFLICT] * 2, [f.cause for f in found]


def test_status() -> None:
    likely = replace(FOUND, certain=False)
    assert (status([], []), status([likely], []), status([FOUND], ["x"]), status([likely], ["x"])) == (0, 0, 10, 11)


def test_as_text() -> None:
    out = io.StringIO()
    found = [replace(FOUND, packets=0), replace(FOUND, certain=False, packets=0)]
    render.find("text")(out, io.StringIO()).audit(found, ["a", "b"], ["table nat cannot be read"], 10)
    lines = out.getvalue().splitlines()
    assert lines[0] == "!! FINDING nodeport_host_process  without traffic" and lines[7].startswith(" ? PERHAPS")
    assert lines[-2:] == ["not read: table nat cannot be read", "2 checks: 1 found, 1 perhaps"]


def test_as_json() -> None:
    out = io.StringIO()
    render.find("json")(out, io.StringIO()).audit([replace(FOUND, packets=0, numbers=())], ["a"], [], 10)
    finding, summary = (json.loads(line) for line in out.getvalue().splitlines())
    for line in (finding, summary):
        VALIDATOR.validate(line)
    assert finding["count"] == 0 and "first" not in finding and finding["packets"] == []
    assert summary == {"type": "audit", "checks": ["a"], "findings": 1, "unread": [], "status": 10}
