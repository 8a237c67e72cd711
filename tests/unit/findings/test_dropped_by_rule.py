# SPDX-License-Identifier: Apache-2.0
"""The owner of the rule that drops a packet: a NetworkPolicy, the administrator, a chain's policy; never kube-proxy."""

from __future__ import annotations

import pytest

from tests.support import findings as f
from tracer.kube.catalog import ClusterView
from tracer.model.endpoints import Endpoints
from tracer.model.finding import Finding
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Packet
from tracer.model.rule import RuleHit
from tracer.rules import save_parser

RULES = save_parser.parse("""*filter
:FORWARD DROP [0:0]
:INPUT ACCEPT [0:0]
:cali-fw-1 - [0:0]
:KUBE-FIREWALL - [0:0]
-A FORWARD -m comment --comment "cali:1" -j cali-fw-1
-A FORWARD -p tcp -m tcp --dport 8080 -j DROP
-A INPUT -j KUBE-FIREWALL
-A cali-fw-1 -m comment --comment "cali:x Drop if no policies passed packet" -j DROP
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
COMMIT
""")
ENDS = Endpoints("10.244.0.11", 40000, "10.244.0.12", 8080)


def packet(hook: Hook, *hits: RuleHit) -> Packet:
    return f.packet([f.table(RULES, hook, "filter", *hits, verdict=Verdict.DROP)], ENDS)


def found(made: Packet) -> list[Finding]:
    return [x for x in f.findings_of([made], ClusterView(), f.FakeNode())[0] if x.name == "dropped_by_rule"]


def test_a_networkpolicy() -> None:
    (finding,) = found(packet(Hook.FORWARD, f.hit(RULES, "filter", ("FORWARD", "cali-fw-1"), ("cali-fw-1", "DROP"))))
    assert finding.certain and finding.cause.startswith(
        "A rule of Calico, chain cali-fw-1 (it implements NetworkPolicies) drops"
    )
    assert "packets from 10.244.0.11 to 10.244.0.12:8080 in FORWARD" in finding.cause
    assert f.proofs(finding, "rule")[0].startswith("FORWARD 1 > cali-fw-1 1: ")
    assert finding.subject is None, "a program's rule, for no object"


def test_the_administrator() -> None:
    (finding,) = found(packet(Hook.FORWARD, f.hit(RULES, "filter", ("FORWARD", "--dport 8080"))))
    assert finding.cause.startswith("A rule of the administrator drops packets")


def test_a_policy_of_a_chain() -> None:
    (finding,) = found(packet(Hook.FORWARD, f.policy("FORWARD", "DROP")))
    assert (
        finding.cause.startswith("The policy of filter FORWARD drops packets")
        and "iptables-legacy -t filter -S FORWARD" in finding.check
    )


def test_kubelets_drops_and_accepted_packets_are_no_finding() -> None:
    assert found(packet(Hook.INPUT, f.hit(RULES, "filter", ("INPUT", "KUBE-FIREWALL"), ("KUBE-FIREWALL", "DROP")))) == []
    passed = f.packet([f.table(RULES, Hook.FORWARD, "filter", f.policy("FORWARD"))], ENDS)
    assert found(passed) == []


@pytest.mark.parametrize("count", [1, 3])
def test_one_rule_is_one_finding(count: int) -> None:
    made = [packet(Hook.FORWARD, f.policy("FORWARD", "DROP")) for _ in range(count)]
    (finding,) = f.findings_of(made, ClusterView(), f.FakeNode())[1]
    assert finding.packets == count
