# SPDX-License-Identifier: Apache-2.0
"""Antrea: chains ANTREA-*, comments "Antrea: ", tables antrea of nftables.

Policies of pods are flows of Open vSwitch, not rules. Policies of nodes are rules, in ANTREA-POL-INGRESS-RULES and
ANTREA-POL-EGRESS-RULES: the comment "Antrea: for rule NAME, policy KIND:NAME" is at the rule itself or, if the policy's rule
has several ports, at the rule that jumps to their chain ANTREA-POL- with the id of the policy's rule.
Source: pkg/agent/route/route_linux.go, pkg/agent/controller/networkpolicy/node_reconciler_linux.go, pkg/agent/util/nftables.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.kube.owners.by_name import ExactNames
from tracer.kube.policies.applied import owner_of_policy
from tracer.model.kube import Owner
from tracer.model.netfilter import REFUSALS
from tracer.model.policy import EGRESS, INGRESS, AppliedPolicy, PolicyDenial, PolicyName
from tracer.model.rule import Rule, Ruleset

PROGRAM = "Antrea"
NAMES = ExactNames(PROGRAM, re.compile(r"ANTREA-[A-Z0-9-]+"), frozenset({"antrea"}), re.compile(r"Antrea: .*"))
DIRECTIONS = {"ANTREA-POL-INGRESS-RULES": INGRESS, "ANTREA-POL-EGRESS-RULES": EGRESS}
"""Chain with the rules of policies -> their direction."""
_PORTS = re.compile(r"ANTREA-POL-[0-9A-F]{8,32}")
_POLICY = re.compile(r"Antrea: for rule (?P<rule>.*), policy AntreaClusterNetworkPolicy:(?P<name>[a-z0-9.-]+)")


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    found = NAMES.owner(rule)
    direction, part, named = _policy(rule, ruleset) if found else ("", "", ())
    if not direction:
        return found
    return owner_of_policy(PROGRAM, named, f"{direction}, rule {part}" if part else direction, rule.chain)


def denial_of(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> PolicyDenial | None:
    """Returns what a rule that denies packets shows of policies; None for any other rule."""
    if rule.target.upper() not in REFUSALS or rule.family not in ("ip", "ip6"):
        return None
    direction, _, named = _policy(rule, ruleset)
    if not direction:
        return None
    return PolicyDenial(PROGRAM, (AppliedPolicy(rule.chain, direction, named),), direction, is_rule=True)


def _policy(rule: Rule, ruleset: Ruleset) -> tuple[str, str, tuple[PolicyName, ...]]:
    """Returns (direction, name of the policy's rule, the policy) of a rule; direction "" = it is of no policy, () = unknown."""
    if rule.chain in DIRECTIONS:
        return DIRECTIONS[rule.chain], *_named(rule)
    if not _PORTS.fullmatch(rule.chain):
        return "", "", ()
    for chain, direction in DIRECTIONS.items():
        for jump in ruleset.chain(rule.family, rule.table, chain):
            if jump.target == rule.chain:
                return direction, *_named(jump)
    return "", "", ()


def _named(rule: Rule) -> tuple[str, tuple[PolicyName, ...]]:
    found = _POLICY.fullmatch(rule.comment)
    if not found:
        return "", ()
    return found["rule"], (PolicyName("AntreaClusterNetworkPolicy", "", found["name"], "comment"),)
