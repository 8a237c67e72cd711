# SPDX-License-Identifier: Apache-2.0
"""Antrea's rules, and the ClusterNetworkPolicy that a rule for nodes carries out."""

from __future__ import annotations

import pytest

from tests.support.owned_rules import nft_owner, others, owners_of
from tests.support.policy_writers.antrea_tables import NodeRule, saved
from tracer.kube.catalog import ClusterView
from tracer.kube.owners import denial_of
from tracer.rules import save_parser

RULES = [
    NodeRule("deny-ssh", "ssh", "Drop", "192.0.2.1", (22,)),
    NodeRule("deny-web", "web, policy AntreaClusterNetworkPolicy:other", "Reject", "192.0.2.2", (80, 443)),
    NodeRule("to-far", "far", "Allow", "192.0.2.3", direction="egress"),
]
TEXT = saved(RULES)


def test_every_rule_is_antreas() -> None:
    assert others(TEXT, "Antrea") == [] and len(owners_of(TEXT)) == TEXT.count("\n-A ")


def test_rules_of_a_policy_for_nodes() -> None:
    named = [(chain, text) for chain, text in owners_of(TEXT) if "Policy" in text]
    assert named == [
        ("ANTREA-POL-INGRESS-RULES", "Antrea ClusterNetworkPolicy deny-ssh, ingress, rule ssh (Antrea)"),
        *[(chain, "Antrea ClusterNetworkPolicy deny-web, ingress, rule web, policy AntreaClusterNetworkPolicy:other (Antrea)")
          for chain in ("ANTREA-POL-INGRESS-RULES",)],
        ("ANTREA-POL-EGRESS-RULES", "Antrea ClusterNetworkPolicy to-far, egress, rule far (Antrea)"),
        *[(RULES[1].chain, "Antrea ClusterNetworkPolicy deny-web, ingress, rule web, policy AntreaClusterNetworkPolicy:other"
           " (Antrea)")] * 2,
    ]  # fmt: skip


def test_what_denies() -> None:
    rules = save_parser.parse(TEXT)
    every = [(r, denial_of(r, rules, ClusterView())) for chain in rules.chains.values() for r in chain]
    found = [(r.target, d.direction, d.is_rule, d.policies[0].text) for r, d in every if d]
    assert found == [
        ("DROP", "ingress", True, "Antrea ClusterNetworkPolicy deny-ssh"),
        *[("REJECT", "ingress", True, "Antrea ClusterNetworkPolicy deny-web")] * 2,
    ]


@pytest.mark.parametrize(
    "rule",
    [
        "-A ANTREA-POL-INGRESS-RULES -s 192.0.2.1/32 -j DROP",
        '-A ANTREA-POL-INGRESS-RULES -m comment --comment "Antrea: for rule a, policy AntreaClusterNetworkPolicy:x y" -j DROP',
        '-A ANTREA-POL-INGRESS-RULES -m comment --comment "for rule a, policy AntreaClusterNetworkPolicy:x" -j DROP',
    ],
)
def test_a_rule_without_the_comment_has_no_name(rule: str) -> None:
    ((_, text),) = owners_of(f"*filter\n{rule}\n")
    assert text.startswith("Antrea, for an unknown object") and "policy of chain ANTREA-POL-INGRESS-RULES" in text


def test_a_chain_that_no_rule_of_a_policy_jumps_to() -> None:
    ((_, text),) = owners_of("*filter\n-A ANTREA-POL-0123456789ABCDEF -p tcp -m tcp --dport 22 -j DROP\n")
    assert text == "Antrea, chain ANTREA-POL-0123456789ABCDEF"


@pytest.mark.parametrize(
    "rule",
    [
        "-A ANTREAN -p tcp -j DROP",
        '-A INPUT -m comment --comment "Antreas: x" -j DROP',
        '-A SHOP -m comment --comment "Antrea: accept" -j ACCEPT',
    ],
)
def test_what_only_looks_alike_is_not_antreas(rule: str) -> None:
    ((_, text),) = owners_of(f"*filter\n{rule}\n")
    assert "Antrea" not in text


def test_tables_of_nftables() -> None:
    assert nft_owner("antrea", "nat-prerouting-proxy-all", "dnat to 169.254.0.252") == "Antrea, table antrea"
    assert nft_owner("antrea-shop", "forward", "drop") != "Antrea, table antrea-shop"
