"""Stale RETURN rules, told from rules and from what says which network is this node's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import audits
from tests.audits import FakeRoutes
from tests.findings import FakeNode
from tests.nodes import MODES, node
from tracer.audit.missing_masquerade import check
from tracer.routes import Link

CANAL = Path(__file__).resolve().parents[1] / "vagrant/incidents/rulesets"
TUNNEL = FakeRoutes((*audits.LINKS, Link("flannel.1", "vxlan")), {"192.168.66.0/24": ("192.168.66.0", "flannel.1")})


@pytest.mark.parametrize("mode", MODES)
def test_the_stale_rule_of_a_real_node(mode: str, tmp_path: Path) -> None:
    (told,) = check(audits.state(node(mode, "S3"), tmp_path))
    rule, *_ = told.proofs
    assert told.certain and "10.244.3.0/24" in told.cause
    assert rule.text.startswith("POSTROUTING ") and rule.text.endswith("(flannel, podCIDR 10.244.3.0/24 (not this node's))")
    routes = [p.text for p in told.proofs if p.what == "route"]
    assert routes == ["10.244.3.0/24 is reached via 10.244.3.0 dev flannel.1"]
    behind = [p.text for p in told.proofs if p.evidence == "derived"]
    assert behind and "masquerade" in behind[0].lower()


def test_without_api_and_lease_only_a_tunnel_tells_it() -> None:
    state = audits.of_text((CANAL / "canal-stale.rules").read_text())
    assert list(check(state)) == [], "each node has one such rule that is right"
    (told,) = check(replace(state, routes=TUNNEL))
    assert told.certain and "192.168.66.0/24" in told.cause and "not this node's" in told.cause


def test_flannels_lease_tells_it_too() -> None:
    leased = FakeNode(leases=("192.168.64.0/24",))
    (told,) = check(audits.of_text((CANAL / "canal-stale.rules").read_text(), node=leased))
    assert (
        told.certain and "iptables-legacy -t nat -D POSTROUTING ! -s 192.168.64.0/20 -d 192.168.66.0/24 -j RETURN" in told.cure
    )
    assert list(check(audits.of_text((CANAL / "canal.rules").read_text(), node=leased))) == []
