# SPDX-License-Identifier: Apache-2.0
"""kubelet's rule against packets for loopback addresses from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import findings as f
from tests.support.nodes import node
from tracer.model.endpoints import Endpoints
from tracer.model.netfilter import Hook, Verdict


@pytest.mark.parametrize("mode", ["1.20.2-iptables-legacy", "1.36.2-iptables-nft"])
def test_a_drop_by_the_rule_is_a_finding(mode: str, tmp_path: Path) -> None:
    one = node(mode, "S2-one")
    rules = one.iptables()
    hit = f.hit(rules, "filter", ("INPUT", "-j KUBE-FIREWALL"), ("KUBE-FIREWALL", "block incoming localnet"))
    made = f.packet(
        [f.table(rules, Hook.INPUT, "filter", hit, verdict=Verdict.DROP)], Endpoints(f.CLIENT, 4000, "127.0.0.1", 10250)
    )
    on = f.FakeNode(settings={"net/ipv4/conf/all/route_localnet": "1"})
    (finding,) = f.findings_of([made], one.cluster_view(tmp_path), on)[0]
    assert finding.name == "martian_localnet" and finding.cause.startswith(
        "kubelet's firewall drops 192.168.56.1 -> 127.0.0.1:10250"
    )
    assert f.proofs(finding, "setting") == ["net.ipv4.conf.all.route_localnet = 1 (/proc/sys)"]


def test_another_drop_of_that_chain_is_no_finding(tmp_path: Path) -> None:
    one = node("1.20.2-iptables-legacy", "S2-one")
    rules = one.iptables()
    hit = f.hit(rules, "filter", ("INPUT", "-j KUBE-FIREWALL"), ("KUBE-FIREWALL", "dropping marked packets"))
    made = f.packet(
        [f.table(rules, Hook.INPUT, "filter", hit, verdict=Verdict.DROP)], Endpoints(f.CLIENT, 4000, "192.168.56.10", 80)
    )
    assert f.findings_of([made], one.cluster_view(tmp_path), f.FakeNode())[1] == []
