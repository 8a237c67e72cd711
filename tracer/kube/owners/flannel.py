# SPDX-License-Identifier: Apache-2.0
"""flannel: chains FLANNEL-*, the comment "flanneld", tables flannel-ipv4/-ipv6; before 0.20 four bare rules in POSTROUTING.

Those four have neither chain nor comment. They are recognized by their form, if the first two of them are in the same chain for
the same network. Source: flannel pkg/ip/iptables.go (MasqRules), pkg/trafficmngr.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.kube.rule_text import from_base, siblings
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

PROGRAM = "flannel"

_NET = r"(\d+\.\d+\.\d+\.\d+/\d+|[0-9a-f:]+::/\d+)"
_NO_COMMENT = re.compile(r'-m comment --comment "[^"]*" ?|xt match "comment" ?| ?comment "[^"]*"')
_SHAPES = {
    "inside": re.compile(rf"(?:-s {_NET} -d {_NET} -j RETURN|ip6? saddr {_NET} ip6? daddr {_NET} return)"),
    "out": re.compile(
        rf"(?:-s {_NET} ! -d (?:224\.0\.0\.0/4|ff00::/8) -j MASQUERADE.*"
        rf"|ip6? saddr {_NET} ip6? daddr != (?:224\.0\.0\.0/4|ff00::/8) (?:masquerade.*|xt target \"MASQUERADE\"))"
    ),
    "to subnet": re.compile(rf"(?:! -s {_NET} -d {_NET} -j RETURN|ip6? saddr != {_NET} ip6? daddr {_NET} return)"),
    "in": re.compile(
        rf"(?:! -s {_NET} -d {_NET} -j MASQUERADE.*"
        rf"|ip6? saddr != {_NET} ip6? daddr {_NET} (?:masquerade.*|xt target \"MASQUERADE\"))"
    ),
}


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    if rule.chain.startswith("FLANNEL-") or rule.table.startswith("flannel-"):
        return _own(rule, cluster, "chain name")
    if rule.comment.startswith("flanneld "):
        return _own(rule, cluster, "comment")
    if from_base(rule, ("FLANNEL-",)):
        return _own(rule, cluster, "chain it jumps to")
    if rule.chain == "POSTROUTING" and rule.table == "nat" and _bare(rule, ruleset):
        return _own(rule, cluster, "shape of the rule, and of those around it")
    return None


def _shape(rule: Rule) -> tuple[str, list[str]]:
    """Returns which of the four rules it is, and its networks, the cluster's first."""
    text = _NO_COMMENT.sub("", rule.text)
    for name, pattern in _SHAPES.items():
        found = pattern.fullmatch(text)
        if found:
            return name, [g for g in found.groups() if g]
    return "", []


def _bare(rule: Rule, ruleset: Ruleset) -> bool:
    name, nets = _shape(rule)
    if not name or rule.comment or 'xt match "comment"' in rule.text:
        return False
    if (name == "inside" or name == "in") and nets[0] != nets[1]:
        return False
    around = [_shape(r) for r in siblings(rule, ruleset) if not r.comment]
    return ("inside", [nets[0], nets[0]]) in around and ("out", [nets[0]]) in around


def _own(rule: Rule, cluster: ClusterView, evidence: str) -> Owner:
    name, nets = _shape(rule)
    detail = ""
    if name == "to subnet":
        detail = f"podCIDR {nets[1]}"
        node = cluster.store.this_node()
        holder = cluster.store.by_pod_cidr.one(nets[1])
        if node and node.pod_cidrs:
            detail += "" if nets[1] in node.pod_cidrs else " (not this node's)"
            evidence += ", API: podCIDR"
        elif holder:
            detail += f" of {holder.name}"
    return Owner("program", program=PROGRAM, detail=detail, evidence=evidence)
