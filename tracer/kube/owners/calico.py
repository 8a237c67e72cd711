# SPDX-License-Identifier: Apache-2.0
"""Calico: chains cali-*, comments "cali:" and a hash, tables calico and calico-*. Source: felix/rules, felix/iptables.

The chain of a policy names it, by its text or by a hash (tracer/kube/policies/calico_names.py); a comment in it names it, too,
and counts only if the hash fits. The chain of a pod's interface jumps to the policies of the pod, and drops what none of them
accepted ("no policies passed packet"). With nftables each chain begins with a table of iptables: "filter-cali-".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import ip_network

from tracer.kube.catalog import ClusterView
from tracer.kube.owners.by_name import by_name
from tracer.kube.policies.applied import in_words, owner_of_denial, owner_of_policy
from tracer.kube.policies.calico_names import POLICY_PREFIXES, by_comment, by_plain_name
from tracer.kube.rule_text import mark_set, mark_tested
from tracer.model.kube import Owner
from tracer.model.policy import AppliedPolicy, NetworkPolicy, PolicyDenial, PolicyName
from tracer.model.rule import Rule, Ruleset

PROGRAM = "Calico"
CHAINS = ("cali-",)
COMMENTS = ("cali:",)
TABLES = ("calico",)
LAYERS = ("filter-", "raw-", "mangle-", "nat-")
"""What stands before a chain of table calico."""
PODS = {"cali-tw-": "ingress", "cali-fw-": "egress"}
"""Prefix of the chain of a pod's interface -> direction."""
GROUPS = ("cali-gi-", "cali-go-")
"""Prefixes of chains that jump to several policies."""
REFUSALS = ("DROP", "REJECT")
MOST_POLICIES = 64
"""Policies of one chain that are looked at."""

_COMMENTS = re.compile(r'comment "((?:\\.|[^"\\])*)"|--comment ([^\s"]+)')
_START = re.compile(r"Start of (?:tier \S+|policies)")


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    found = by_name(rule, PROGRAM, CHAINS, TABLES, COMMENTS)
    if not found:
        return None
    denial = denial_of(rule, ruleset, cluster)
    if denial and not denial.is_rule and denial.policies:
        return owner_of_denial(denial)
    direction = _direction(rule.chain)
    if not direction:
        return found
    named = _named(rule.chain, rule, ruleset, cluster)
    detail = in_words(direction, _rule_number(rule, direction, named, ruleset, cluster))
    return owner_of_policy(PROGRAM, named, detail, rule.chain)


def denial_of(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> PolicyDenial | None:
    """Returns what a rule that denies packets shows of policies; None for any other rule."""
    if rule.target.upper() not in REFUSALS or not by_name(rule, PROGRAM, CHAINS, TABLES, COMMENTS):
        return None
    direction = _direction(rule.chain)
    if direction:
        applied = AppliedPolicy(rule.chain, direction, _named(rule.chain, rule, ruleset, cluster))
        return PolicyDenial(PROGRAM, (applied,), direction, is_rule=True)
    chain = _plain(rule.chain)
    prefix = next((p for p in PODS if chain.startswith(p)), "")
    if not prefix or not any("if no policies passed packet" in c for c in comments(rule)):
        return None
    pod = cluster.store.by_calico_interface.one(chain[-11:])
    name = (pod.namespace, pod.name) if pod else ("", "")
    return PolicyDenial(PROGRAM, tuple(_applied(rule, ruleset, cluster)), PODS[prefix], name)


def comments(rule: Rule) -> list[str]:
    """Returns all comments of a rule: iptables has several, nftables has one with a semicolon after the hash."""
    found = [a or b for a, b in _COMMENTS.findall(rule.text)] or [rule.comment]
    return [part.strip() for text in found for part in text.split(";")]


def _plain(chain: str) -> str:
    """Returns the name that the chain has with iptables."""
    layer = next((name for name in LAYERS if chain.startswith(name + "cali-")), "")
    return chain.removeprefix(layer)


def _direction(chain: str) -> str:
    """Returns the direction of a policy's chain; "" = it is none."""
    return POLICY_PREFIXES.get(_plain(chain)[:8], "")


def _named(chain: str, of: Rule, ruleset: Ruleset, cluster: ClusterView) -> tuple[PolicyName, ...]:
    """Returns the policies that a chain can be for; () = unknown. of: a rule of the same table."""
    name = _plain(chain)[8:]
    known = cluster.store.by_policy_chain.all(name)
    first = ruleset.chain(of.family, of.table, chain)[:1] or ((of,) if of.chain == chain else ())
    for rule in first:
        for comment in comments(rule):
            found = by_comment(comment, name)
            if found and found.kind == "NetworkPolicy" and cluster.store.policies.all((found.namespace, found.name)):
                return (PolicyName(found.kind, found.namespace, found.name, "API: chain hash, comment"),)
            if found:
                return (found,)
    by_api = tuple(PolicyName("NetworkPolicy", p.namespace, p.name, "API: chain hash") for p in known)
    return by_api or by_plain_name(name)


def _applied(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Iterator[AppliedPolicy]:
    """Yields the policies that the chain of an interface has asked before this rule, since the beginning of their tier."""
    before = ruleset.chain(rule.family, rule.table, rule.chain)[: rule.number - 1]
    starts = [at for at, one in enumerate(before) if any(_START.fullmatch(c) for c in comments(one))]
    chains = [one.target for one in before[starts[-1] if starts else 0 :]]
    asked: list[str] = []
    for chain in chains:
        if _plain(chain).startswith(GROUPS):
            asked += [one.target for one in ruleset.chain(rule.family, rule.table, chain)]
        else:
            asked.append(chain)
    for chain in [c for c in dict.fromkeys(asked) if _direction(c)][:MOST_POLICIES]:
        yield AppliedPolicy(chain, _direction(chain), _named(chain, rule, ruleset, cluster))


def _rule_number(rule: Rule, direction: str, named: tuple[PolicyName, ...], ruleset: Ruleset, cluster: ClusterView) -> int:
    """Returns the number of the NetworkPolicy's rule that a rule was written for, from 1; 0 = not known.

    Calico writes a part of the chain for each protocol and each peer of a rule. A part ends with RETURN, only the last one may
    have none. The number is given only if the chain has as many parts as the object demands.
    """
    policy = cluster.store.policies.one((named[0].namespace, named[0].name)) if len(named) == 1 else None
    if not policy or named[0].kind != "NetworkPolicy":
        return 0
    rules = ruleset.chain(rule.family, rule.table, rule.chain)
    ends = [one.number for one in rules if one.target.upper() == "RETURN"]
    parts = [number for number, count in enumerate(_parts(policy, direction, rule.family), 1) for _ in range(count)]
    has_open = bool(rules) and rules[-1].number not in ends
    at = sum(end < rule.number for end in ends)
    return parts[at] if len(parts) == len(ends) + has_open and at < len(parts) else 0


def _parts(policy: NetworkPolicy, direction: str, family: str) -> Iterator[int]:
    """Yields for each rule of the policy how many parts of a chain it makes in this family."""
    for rule in policy.rules(direction):
        protocols = len({port.protocol for port in rule.ports}) or 1
        peers = [p for p in rule.peers if not p.block or (ip_network(p.block).version == 6) == (family == "ip6")]
        yield protocols * (len(peers) if rule.peers else 1)


def accepts(rule: Rule, ruleset: Ruleset) -> bool:
    """Whether a rule of a policy's chain sets the mark for an accepted packet. Other marks are for parts of a condition.

    The rule after it returns for the same mark, or it is the last one.
    """
    after = ruleset.chain(rule.family, rule.table, rule.chain)[rule.number : rule.number + 2]
    returns = next((one for one in after if one.target.upper() == "RETURN"), None)
    return not after or bool(returns and mark_tested(returns) == mark_set(rule))
