# SPDX-License-Identifier: Apache-2.0
"""Forwarding that is off on a node with kube-proxy's rules."""

from __future__ import annotations

from pathlib import Path

from tests.support import audits
from tests.support.nodes import node
from tracer.audit.ip_forward import check


def test_forwarding_off(tmp_path: Path) -> None:
    state = audits.state(node("1.36.2-iptables-legacy", "S2-one"), tmp_path)
    assert list(check(state)) == []
    settings = audits.healthy().settings | {"net/ipv4/ip_forward": "0", "net/ipv6/conf/all/forwarding": "0"}
    state.context.node.settings = settings  # type: ignore[attr-defined]
    (finding,) = check(state)
    assert finding.certain and finding.cause.startswith("net.ipv4.ip_forward is 0"), "this node has no IPv6 pods"
    assert finding.proofs[0].text == "net.ipv4.ip_forward = 0"


def test_a_machine_without_kube_proxy_need_not_forward() -> None:
    state = audits.of_text("*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -j ACCEPT\nCOMMIT\n")
    state.context.node.settings = {"net/ipv4/ip_forward": "0"}  # type: ignore[attr-defined]
    assert list(check(state)) == []
