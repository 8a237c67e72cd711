# SPDX-License-Identifier: Apache-2.0
"""Stale RETURN rules, found from the rules and from the evidence of which network belongs to this node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import audits
from tests.support.audits import FakeRoutes
from tests.support.findings import FakeNode
from tests.support.nodes import MODES, node
from tracer.audit.missing_masquerade import check
from tracer.audit.state import NodeState
from tracer.node.routes import NetworkDevice

CANAL = Path(__file__).resolve().parents[3] / "vagrant/incidents/rulesets"
TUNNEL = FakeRoutes((*audits.LINKS, NetworkDevice("flannel.1", "vxlan")), {"192.168.66.0/24": ("192.168.66.0", "flannel.1")})


SETS = """create cali40masq-ipam-pools hash:net
create cali40all-ipam-pools hash:net
add cali40masq-ipam-pools 192.168.64.0/20
add cali40all-ipam-pools 192.168.64.0/20
"""
POD = "192.168.66.5"


def stale(name: str = "canal-stale", node: FakeNode | None = None, sets: str = SETS, text: str = "") -> NodeState:
    """The rules of a node with canal. The Service's only pod runs on another node, behind flannel's tunnel."""
    state = audits.of_text(text or (CANAL / f"{name}.rules").read_text(), node=node, sets=sets)
    return replace(state, routes=TUNNEL)


@pytest.mark.parametrize("mode", MODES)
def test_a_stale_rule_that_no_request_meets(mode: str, tmp_path: Path) -> None:
    """kube-proxy knows the pods' network there and masquerades before flannel's rules; no pod is in that network."""
    assert list(check(audits.state(node(mode, "S3"), tmp_path))) == []


def test_the_finding_shows_the_rule_and_a_request() -> None:
    (finding,) = check(stale())
    rule, *_ = finding.proofs
    assert finding.certain and "192.168.66.0/24" in finding.cause and "not this node's" in finding.cause
    assert rule.text.startswith("POSTROUTING ") and "-d 192.168.66.0/24 -j RETURN" in rule.text
    assert [p.text for p in finding.proofs if p.what == "route"] == [
        "192.168.66.0/24 is reached via 192.168.66.0 dev flannel.1"
    ]
    behind, request = (p.text for p in finding.proofs if p.evidence == "derived")
    assert "MASQUERADE" in behind and f"goes to {POD} with its source unchanged, and leaves by flannel.1" in request


@pytest.mark.parametrize("first", [True, False])
def test_kube_proxy_masquerades_before_it(first: bool) -> None:
    """With --cluster-cidr kube-proxy marks each request of the node: only the order of the two rules decides then."""
    text = (CANAL / "canal-stale.rules").read_text()
    mark = "-A KUBE-SERVICES ! -s 192.168.64.0/20 -d 172.30.253.123/32 -p tcp -m tcp --dport 8080 -j KUBE-MARK-MASQ\n"
    text = text.replace("-A KUBE-SERVICES", mark + "-A KUBE-SERVICES", 1)
    jump = next(line for line in text.splitlines() if line.startswith("-A POSTROUTING") and "KUBE-POSTROUTING" in line)
    if not first:
        lines = [line for line in text.splitlines() if line != jump]
        last = max(at for at, line in enumerate(lines) if line.startswith("-A POSTROUTING"))
        text = "\n".join([*lines[: last + 1], jump, *lines[last + 1 :]]) + "\n"
    assert bool(list(check(stale(text=text)))) != first


def test_an_unreadable_set_makes_it_only_likely() -> None:
    (finding,) = check(stale(sets=""))
    assert not finding.certain and finding.cause.startswith("Perhaps requests to pods in 192.168.66.0/24")


def test_without_api_and_lease_only_a_tunnel_proves_it() -> None:
    state = audits.of_text((CANAL / "canal-stale.rules").read_text(), sets=SETS)
    assert list(check(state)) == [], "each node has one such rule that is correct"
    (finding,) = check(replace(state, routes=TUNNEL))
    assert finding.certain


def test_flannels_lease_proves_it_too() -> None:
    leased = FakeNode(leases=("192.168.64.0/24",))
    (finding,) = check(stale(node=leased))
    assert (
        finding.certain
        and "iptables-legacy -t nat -D POSTROUTING ! -s 192.168.64.0/20 -d 192.168.66.0/24 -j RETURN" in finding.cure
    )
    assert list(check(stale("canal", node=leased))) == []
