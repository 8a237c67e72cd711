# SPDX-License-Identifier: Apache-2.0
"""The audit: each check has a test and a line of documentation; of each recorded node exactly its conflicts are reported."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import audits
from tests.support.nodes import MODES, nodes
from tests.support.sample_findings import FOUND, VALIDATOR
from tracer import render
from tracer.audit import audit, checks, description, limits, names
from tracer.audit.state import NodeState
from tracer.cli import main
from tracer.commands.audit import status
from tracer.findings.context import FindingContext
from tracer.kube.catalog import ClusterView
from tracer.rules.inventory import RuleInventory

ROOT = Path(__file__).resolve().parents[3]
HOSTPORT_CONFLICT = ("hostport_takes_service", True)
BY_SCENARIO = {"S5-nodeport": [HOSTPORT_CONFLICT] * 2, "S5-nodeport-proxyrestart": [HOSTPORT_CONFLICT] * 2}
LARGE = "1.36.2-nftables-nft"
"""The mode for which the node with 2,000 Services is audited too."""
CASES = [(m, n.scenario) for m in MODES for n in nodes(m) if n.scenario != "big2000" or m == LARGE]


def test_every_check_has_a_test_and_a_line() -> None:
    assert len(names()) >= 9
    assert list(names()) == [name for name, _ in checks()]
    page = (ROOT / "docs/audit.md").read_text()
    for name in names():
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
    checks, limits = ["a", "b", "c", found[0].name], [("a", "so\x1b"), ("b", "this"), ("c", "so\x1b")]
    render.find("text")(out, io.StringIO()).audit(found, checks, ["table nat cannot be read"], 10, limits)
    lines = out.getvalue().splitlines()
    assert lines[0] == "!! FINDING nodeport_host_process  without traffic" and lines[7].startswith(" ? PERHAPS")
    assert lines[-6:] == [
        "not read: table nat cannot be read",
        "4 checks: 1 found, 1 perhaps",
        "  found    nodeport_host_process (2)",
        "  nothing  a, b, c",
        "  limited  a, c: so\\x1b",
        "  limited  b: this",
    ]


def test_what_a_check_could_not_look_at(tmp_path: Path) -> None:
    """With the objects of a node in iptables mode nothing is missing but conntrack's size, which was not recorded."""
    one = next(n for n in nodes("1.36.2-iptables-nft") if n.scenario == "S5-nodeport")
    assert {name for name, _ in limits(audits.state(one, tmp_path))} == {"conntrack_full"}
    alone = limits(audits.state(one, tmp_path, with_api=False))
    without = {name for name, why in alone if "neither an API nor --objects gave any" in why}
    assert without == {"endpoint_not_ready", "no_local_endpoints", "leftover_chains", "rules_behind_objects"}
    assert {name for name, why in alone if "its object is not known" in why} == {
        "bridge_nf",
        "ip_forward",
        "missing_masquerade",
    }


def test_ipvs_mode_limits_the_checks(tmp_path: Path) -> None:
    one = next(n for n in nodes("1.20.2-ipvs-nft") if n.scenario == "S2-three")
    found = dict(limits(audits.state(one, tmp_path)))
    assert "not followed" in found["missing_masquerade"] and "nodeport_host_process" not in found
    alone = dict(limits(audits.state(one, tmp_path, with_api=False)))
    assert "in ipvs mode no rule names them" in alone["nodeport_host_process"]


def test_without_kube_proxy_some_checks_do_not_apply() -> None:
    state = NodeState(FindingContext(ClusterView()), RuleInventory())
    assert {name for name, why in limits(state) if "does not apply" in why} == {"bridge_nf", "ip_forward", "rp_filter"}


def test_each_check_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    for name in names():
        assert re.fullmatch(r"([A-Z]|kube-proxy ).{20,}\.", description(name)), name
    with pytest.raises(SystemExit) as e:
        main.main(["audit", "--list"])
    listed = capsys.readouterr().out.splitlines()
    assert e.value.code == 0 and [line for line in listed if line[0] != " "] == list(names()) and max(map(len, listed)) <= 80


def test_as_json() -> None:
    out = io.StringIO()
    render.find("json")(out, io.StringIO()).audit([replace(FOUND, packets=0, numbers=())], ["a"], [], 10, [("a", "b")])
    finding, summary = (json.loads(line) for line in out.getvalue().splitlines())
    for line in (finding, summary):
        VALIDATOR.validate(line)
    assert finding["count"] == 0 and "first" not in finding and finding["packets"] == []
    assert summary == {
        "type": "audit",
        "checks": ["a"],
        "findings": 1,
        "unread": [],
        "limited": [{"check": "a", "why": "b"}],
        "status": 10,
    }
