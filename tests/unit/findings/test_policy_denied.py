# SPDX-License-Identifier: Apache-2.0
"""A rule of a policy denies a packet: policies of Calico's own API can."""

from __future__ import annotations

from tests.support import findings as f
from tests.support.policy_writers.antrea_tables import NodeRule, saved
from tracer.kube.catalog import ClusterView
from tracer.model.endpoints import Endpoints
from tracer.model.netfilter import Hook, Verdict
from tracer.rules import save_parser

RULES = save_parser.parse("""*filter
-A FORWARD -m comment --comment "cali:1" -j cali-po-gnp/block
-A FORWARD -m comment --comment "cali:2" -j cali-po-_N6juwc4ZaH0TL-KQUdy
-A cali-po-gnp/block -m comment --comment "cali:3" -p tcp -m tcp --dport 25 -j DROP
-A cali-po-_N6juwc4ZaH0TL-KQUdy -j DROP
""")
ENDS = Endpoints("10.0.0.2", 40000, "203.0.113.1", 25)


def causes(chain: str) -> list[tuple[str, str]]:
    hit = f.hit(RULES, "filter", ("FORWARD", chain), (chain, "DROP"))
    packet = f.packet([f.table(RULES, Hook.FORWARD, "filter", hit, verdict=Verdict.DROP)], ENDS)
    return [(x.name, x.cause) for x in f.findings_of([packet], ClusterView(), f.FakeNode())[0] if x.name != "syn_dropped"]


def test_a_global_policy() -> None:
    assert causes("cali-po-gnp/block") == [(
        "policy_denied",
        "A rule of GlobalNetworkPolicy block denies tcp 25 from 10.0.0.2 to 203.0.113.1, in its egress (Calico, rule 1 of"
        " cali-po-gnp/block).",
    )]  # fmt: skip


def test_an_unknown_policy() -> None:
    ((name, cause),) = causes("cali-po-_N6juwc4ZaH0TL-KQUdy")
    assert name == "policy_denied" and "A rule of an unknown policy (chain cali-po-_N6juwc4ZaH0TL-KQUdy) denies" in cause


def test_a_policy_of_antrea_for_nodes() -> None:
    rules = save_parser.parse(saved([NodeRule("deny-web", "web", "Drop", "10.0.0.2", (25, 80))]))
    own = next(chain for _, _, chain in rules.chains if chain.startswith("ANTREA-POL-") and not chain.endswith("RULES"))
    jumps = [("INPUT", "ANTREA-INPUT"), ("ANTREA-INPUT", "ANTREA-POL-INGRESS-RULES"), ("ANTREA-POL-INGRESS-RULES", own)]
    hit = f.hit(rules, "filter", *jumps, (own, "--dport 25"))
    packet = f.packet([f.table(rules, Hook.INPUT, "filter", hit, verdict=Verdict.DROP)], ENDS)
    (finding,) = [x for x in f.findings_of([packet], ClusterView(), f.FakeNode())[0] if x.name != "syn_dropped"]
    assert (finding.name, finding.cause) == (
        "policy_denied",
        "A rule of Antrea ClusterNetworkPolicy deny-web denies tcp 25 from 10.0.0.2 to 203.0.113.1, in its ingress (Antrea,"
        f" rule 1 of {own}).",
    )
