# SPDX-License-Identifier: Apache-2.0
"""Bridged packets that bypass the rules, on a bridge of this node's pods."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import audits
from tests.support.findings import FakeNode
from tests.support.nodes import node
from tracer.audit.bridge_nf import check
from tracer.node.routes import NetworkDevice

V4 = "net/bridge/bridge-nf-call-iptables"


@pytest.mark.parametrize(("value", "expected"), [("0", f"{V4.replace('/', '.')} = 0"), ("", "br_netfilter is not loaded")])
def test_off_or_not_there(value: str, expected: str, tmp_path: Path) -> None:
    state = audits.state(node("1.36.2-iptables-legacy", "S2-one"), tmp_path, FakeNode(settings={V4: value}))
    (finding,) = check(state)
    assert finding.certain and "on the bridge cni0" in finding.cause and expected in finding.proofs[0].text
    assert "cni0 has 10.244.0.0/24 and 3 interfaces in it" in finding.proofs[1].text


def test_no_pods_or_no_bridge_of_pods_is_no_finding(tmp_path: Path) -> None:
    one = node("1.36.2-iptables-legacy", "S2-one")
    off = FakeNode(settings={V4: "0"})
    assert list(check(audits.state(one, tmp_path, off, with_api=False))) == [], "without the API the pods' network is unknown"
    state = audits.state(one, tmp_path, off)
    docker = audits.FakeRoutes(
        (NetworkDevice("docker0", "bridge", ("172.17.0.0/16",), 4), NetworkDevice("cni0", "bridge", ("10.244.0.0/24",), 1))
    )
    assert list(check(replace(state, routes=docker))) == []
    assert list(check(audits.state(one, tmp_path))) == []
