# SPDX-License-Identifier: Apache-2.0
"""kube-router: chains KUBE-ROUTER-*, KUBE-POD-FW-*, KUBE-NWPLCY-*, KUBE-HAIRPIN-*; many comments name the pod.

Source: pkg/controllers/netpol/network_policy_controller.go, pod.go.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.kube.rule_text import from_base
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

PROGRAM = "kube-router"
CHAINS = ("KUBE-ROUTER-", "KUBE-POD-FW-", "KUBE-NWPLCY-", "KUBE-HAIRPIN-")

_POD = re.compile(r"POD name: ?(?P<name>\S+) namespace: ?(?P<ns>\S+)")


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    if not (rule.chain.startswith(CHAINS) or from_base(rule, CHAINS) or rule.comment.startswith("kube-router netpol")):
        return None
    pod = _POD.search(rule.comment)
    if pod:
        return Owner("Pod", pod["ns"], pod["name"], "", PROGRAM, f"chain {rule.chain}", evidence="comment")
    own = rule.chain if rule.chain.startswith(CHAINS) else rule.target
    return Owner("program", program=PROGRAM, detail=f"chain {own}" if own.startswith(CHAINS) else "", evidence="chain name")
