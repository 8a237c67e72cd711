# SPDX-License-Identifier: Apache-2.0
"""kube-router: chains KUBE-ROUTER-*, KUBE-POD-FW-*, KUBE-NWPLCY-*, KUBE-HAIRPIN-*; comments name pods and policies.

The chain of a pod jumps to the chains of its policies ("run through nw policy NAME"; since 2.11 "NAMESPACE/NAME policy"), and
refuses what none of them has marked. A policy is in the namespace of its pods. The ipsets of its rules have a hash of its name
(tracer/kube/policies/kube_router_names.py): a name that they contradict is not used.
With --use-nftables-for-netpol (2.11) the same chains are in tables of their own, with sets of the same names, and the comment
of a jump to a pod's chain names the pod.
Source: pkg/controllers/netpol/network_policy_controller.go, pod.go, policy.go, comments.go, npc_nftables.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tracer.kube.catalog import ClusterView
from tracer.kube.policies.applied import in_words, owner_of_denial, owner_of_policy
from tracer.kube.policies.kube_router_names import rule_of_set, target_hashes
from tracer.kube.rule_text import from_base
from tracer.model.kube import Owner
from tracer.model.policy import AppliedPolicy, NetworkPolicy, PolicyDenial, PolicyName
from tracer.model.rule import Rule, Ruleset

PROGRAM = "kube-router"
CHAINS = ("KUBE-ROUTER-", "KUBE-POD-FW-", "KUBE-NWPLCY-", "KUBE-HAIRPIN-")
POLICY, POD_CHAIN = "KUBE-NWPLCY-", "KUBE-POD-FW-"
NO_POLICIES = frozenset({"KUBE-NWPLCY-DEFAULT", "KUBE-NWPLCY-COMMON", "KUBE-NWPLCY-TAIL"})
"""Chains that belong to no policy."""
POLICY_MARKS = {0x20000: 0x10000}
"""Mark of an accepted packet -> mark that a policy sets."""
MOST_POLICIES, MOST_RULES = 64, 16
"""Policies of one chain that are looked at, and rules of a policy whose sets are compared without its object."""

_POD = re.compile(r"POD name: ?(?P<name>\S+) namespace: ?(?P<ns>\S+)")
_NFT_POD = re.compile(r"jump traffic (?:to|from) POD name:(?P<name>\S+) ns: (?P<ns>\S+) to chain (?P<chain>\S+)")
_SHORT_POD = re.compile(r"(?P<ns>[^\s/]+)/(?P<name>[^\s/]+) (?:reject|log-drop|in|out)")
_RULE = re.compile(r"policy name:? (?P<name>\S+) namespace (?P<ns>\S+)")
_SHORT_RULE = re.compile(
    r"(?P<ns>[^\s/]+)/(?P<name>[^\s/]+) (?:(?P<way>ingress|egress) (?:pods|any|cidr)( np)?|except-.*|ipblock.*)"
)
_JUMP = re.compile(r"run through nw policy (?P<name>\S+)")
_SHORT_JUMP = re.compile(r"(?P<ns>[^\s/]+)/(?P<name>[^\s/]+) policy")
_SET = re.compile(r"--match-set (?:inet6:)?KUBE-(SRC|DST)-([A-Z2-7]{16}) (src|dst)")
_NFT_SET = re.compile(r"ip6? (s|d)addr @KUBE-(SRC|DST)-([A-Z2-7]{16})(?: |$)")
_ADDRESS = re.compile(r"(?:^| )-([sd]) ([0-9a-f.:]+)(?:/\d+)?(?: |$)|(?:^| )ip6? ([sd])addr ([0-9a-f.:]+)(?: |$)")
NFT_TABLES = frozenset({"kube-router-filter-ipv4", "kube-router-filter-ipv6"})
TOP_CHAINS = ("KUBE-ROUTER-FORWARD", "KUBE-ROUTER-INPUT", "KUBE-ROUTER-OUTPUT")
_FROM = " from source pods to all destinations", " from source pods to specified ipBlocks"


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    if not (rule.chain.startswith(CHAINS) or from_base(rule, CHAINS) or rule.comment.startswith("kube-router netpol")):
        return None
    denial = denial_of(rule, ruleset, cluster)
    if denial and denial.policies:
        return owner_of_denial(denial)
    if rule.chain.startswith(POLICY) and rule.chain not in NO_POLICIES:
        return _policy_owner(rule, ruleset, cluster)
    pod = _POD.search(rule.comment) or _SHORT_POD.fullmatch(rule.comment) or _NFT_POD.fullmatch(rule.comment)
    if pod:
        return Owner("Pod", pod["ns"], pod["name"], "", PROGRAM, f"chain {rule.chain}", evidence="comment")
    own = rule.chain if rule.chain.startswith(CHAINS) else rule.target
    return Owner("program", program=PROGRAM, detail=f"chain {own}" if own.startswith(CHAINS) else "", evidence="chain name")


def denial_of(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> PolicyDenial | None:
    """Returns what the refusing rule of a pod's chain shows of policies; None for any other rule."""
    if not rule.chain.startswith(POD_CHAIN) or rule.target not in ("REJECT", "DROP"):
        return None
    pod = _pod_of(rule, ruleset)
    found = [_ADDRESS.search(one.text) for one in ruleset.chain(rule.family, rule.table, rule.chain)]
    address = next((each[2] or each[4] for each in found if each), "")
    return PolicyDenial(PROGRAM, tuple(_applied(rule, ruleset, pod[0], cluster)), "", pod, address)


def accepts(rule: Rule, ruleset: Ruleset) -> bool:
    """Whether a rule of a policy's chain sets the mark for an accepted packet."""
    return rule.table not in NFT_TABLES or " set " in rule.text


def _applied(rule: Rule, ruleset: Ruleset, namespace: str, cluster: ClusterView) -> Iterator[AppliedPolicy]:
    """Yields the policies that a pod's chain jumps to."""
    jumps = [
        one
        for one in ruleset.chain(rule.family, rule.table, rule.chain)
        if one.target.startswith(POLICY) and one.target not in NO_POLICIES
    ]
    for jump in jumps[:MOST_POLICIES]:
        address = _ADDRESS.search(jump.text)
        direction = {"d": "ingress", "s": "egress"}[address[1] or address[3]] if address else ""
        yield AppliedPolicy(jump.target, direction, _named(jump, namespace, ruleset, cluster))


def _pod_of(rule: Rule, ruleset: Ruleset) -> tuple[str, str]:
    """Returns (namespace, name) of the pod of a chain, by the comments of its rules; ("", "") = none names it."""
    for one in (rule, *ruleset.chain(rule.family, rule.table, rule.chain)):
        pod = _POD.search(one.comment) or _SHORT_POD.fullmatch(one.comment)
        if pod:
            return pod["ns"], pod["name"]
    if rule.table in NFT_TABLES:
        for top in TOP_CHAINS:
            for one in ruleset.chain(rule.family, rule.table, top):
                pod = _NFT_POD.fullmatch(one.comment) if one.target == rule.chain else None
                if pod and pod["chain"] == rule.chain:
                    return pod["ns"], pod["name"]
    return "", ""


def _sets(text: str) -> list[tuple[str, str]]:
    """(hash, "src" or "dst": the end of the packet that is looked up) of each set of a rule."""
    found = [(digest, end) for _, digest, end in _SET.findall(text)]
    return found + [(digest, {"s": "src", "d": "dst"}[end]) for end, _, digest in _NFT_SET.findall(text)]


def _named(jump: Rule, namespace: str, ruleset: Ruleset, cluster: ClusterView) -> tuple[PolicyName, ...]:
    """Returns the policies that a jump can lead to; () = unknown."""
    found, short = _JUMP.fullmatch(jump.comment), _SHORT_JUMP.fullmatch(jump.comment)
    name = (namespace, found["name"]) if found and namespace else (short["ns"], short["name"]) if short else None
    return _verified(jump, jump.target, name, ruleset, cluster)


def _verified(
    of: Rule, chain: str, name: tuple[str, str] | None, ruleset: Ruleset, cluster: ClusterView
) -> tuple[PolicyName, ...]:
    """Returns the policies that a chain can be for: by a comment that its sets do not contradict, else by its sets.

    Args:
        of: A rule of the same table.
        chain: The policy's chain.
        name: (namespace, name) by a comment; None = no comment names it.
        ruleset: The rules.
        cluster: The cluster.
    """
    hashes = [h for one in ruleset.chain(of.family, of.table, chain) for h, _ in _sets(one.text)]
    if not name:
        found = [policy for h in dict.fromkeys(hashes) for policy in cluster.store.by_policy_set.all(h)]
        return tuple(PolicyName("NetworkPolicy", p.namespace, p.name, "API: ipset hash") for p in dict.fromkeys(found))
    if hashes and not set(target_hashes(*name)).intersection(hashes) and not _indexed(hashes, name):
        return ()
    known = cluster.store.policies.all(name)
    evidence = ("API: " if known else "") + ("comment, ipset hash" if hashes else "comment")
    return (PolicyName("NetworkPolicy", *name, evidence),)


def _indexed(hashes: list[str], name: tuple[str, str]) -> bool:
    """Whether a set belongs to one of the first rules of a policy."""
    return any(rule_of_set(h, *name, way, MOST_RULES) for h in hashes for way in ("ingress", "egress"))


def _policy_owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner:
    found = _RULE.search(rule.comment) or _SHORT_RULE.fullmatch(rule.comment)
    named = _verified(rule, rule.chain, (found["ns"], found["name"]) if found else None, ruleset, cluster)
    policy = cluster.store.policies.one((named[0].namespace, named[0].name)) if len(named) == 1 else None
    direction = _direction(rule, named)
    number = _number(rule, direction, policy) if policy else 0
    return owner_of_policy(PROGRAM, named, in_words(direction or "direction not known", number), rule.chain)


def _direction(rule: Rule, named: tuple[PolicyName, ...]) -> str:
    """Returns the direction of a rule of a policy: by its comment, or by the side on which the policy's own pods are."""
    short = _SHORT_RULE.fullmatch(rule.comment)
    if short and short["way"]:
        return short["way"]
    sides = set(_sets(rule.text))
    for name in named:
        for own in target_hashes(name.namespace, name.name):
            if (own, "dst") in sides:
                return "ingress"
            if (own, "src") in sides:
                return "egress"
        for way in ("ingress", "egress"):
            if any(rule_of_set(found, name.namespace, name.name, way, MOST_RULES) for found, _ in sides):
                return way
    return "egress" if any(words in rule.comment for words in _FROM) else ""


def _number(rule: Rule, direction: str, policy: NetworkPolicy) -> int:
    """Returns the number of the policy's rule, from 1; 0 = not known. A rule for all ends has no set of its own."""
    rules = policy.rules(direction) if direction else ()
    own = target_hashes(policy.namespace, policy.name)
    others = [found for found, _ in _sets(rule.text) if found not in own]
    if others:
        numbers = [rule_of_set(found, policy.namespace, policy.name, direction, len(rules)) for found in others]
        return max(numbers)
    for_all = [number for number, each in enumerate(rules, 1) if not each.peers]
    return for_all[0] if len(for_all) == 1 else 0
