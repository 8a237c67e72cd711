# SPDX-License-Identifier: Apache-2.0
"""Pods that are not ready: a finding without a packet where requests are refused for this reason, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import audits
from tests.support.nodes import MODES, Node, node
from tests.unit.findings.test_endpoint_not_ready import SLICE
from tracer.audit.endpoint_not_ready import check
from tracer.model.finding import Finding


def with_slice(one: Node, ready: bool, **more: Any) -> Node:
    """The recorded node, on which the Service default/lonely-web has a pod. `more` are fields of the endpoint."""
    slice_ = json.loads(json.dumps(SLICE))
    slice_["endpoints"][0]["conditions"]["ready"] = ready
    slice_["endpoints"][0] |= more
    items = [o for o in one.objects if not o["metadata"]["name"].startswith("lonely-web") or o["kind"] == "Service"]
    return Node(one.mode, one.scenario, {**one.files, "objects.json": json.dumps({"items": [*items, slice_]})})


def found(mode: str, folder: Path, ready: bool) -> list[Finding]:
    return list(check(audits.state(with_slice(node(mode, "S1"), ready), folder)))


@pytest.mark.parametrize("mode", MODES)
def test_no_pod_is_ready(mode: str, tmp_path: Path) -> None:
    (one,) = found(mode, tmp_path, False)
    assert one.certain and one.key == ("default/lonely-web:http", "tcp")
    cause = "Service default/lonely-web:http is refused because it has no endpoints, although 1 pod belongs to it"
    assert one.cause.startswith(cause)
    assert one.proofs[-1].text == "not ready: pod default/web-1 (node-1)"
    assert "ipvs" in mode or (one.proofs[0].what == "rule" and "endpoints" in one.proofs[0].text), one.proofs


@pytest.mark.parametrize("mode", MODES)
def test_a_pod_that_is_ready(mode: str, tmp_path: Path) -> None:
    assert found(mode, tmp_path, True) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_service_without_pods_may_be_intended(mode: str, tmp_path: Path) -> None:
    assert list(check(audits.state(node(mode, "S1"), tmp_path))) == []


def test_a_rule_of_another_program_that_drops_the_requests_is_no_finding(tmp_path: Path) -> None:
    """The pods are not ready, but the requests end for another reason: no finding names a cause that does not act."""
    one = with_slice(node("1.20.2-iptables-legacy", "S1"), False)
    text = one.files["iptables-save"]
    first = next(line for line in text.splitlines() if "-A INPUT" in line)
    other = {"iptables-save": text.replace(first, f"[0:0] -A INPUT -p tcp -m tcp --dport 30584 -j DROP\n{first}", 1)}
    assert list(check(audits.state(Node(one.mode, one.scenario, {**one.files, **other}), tmp_path))) == []


def test_without_rules_of_kube_proxy_nothing_is_refused_for_it(tmp_path: Path) -> None:
    one = with_slice(node("1.20.2-iptables-legacy", "S1"), False)
    empty = {"iptables-save": "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\nCOMMIT\n"}
    assert list(check(audits.state(Node(one.mode, one.scenario, {**one.files, **empty}), tmp_path))) == []
