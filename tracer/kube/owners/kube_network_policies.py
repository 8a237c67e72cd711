# SPDX-License-Identifier: Apache-2.0
"""kube-network-policies, alone or in kindnet: a table of its own, whose rules send packets to a queue (NFQUEUE).

The program behind the queue decides by the policies; no rule shows which policy it was, nor what the program will answer.
Source: kubernetes-sigs/kube-network-policies pkg/dataplane/controller.go; kind's images/kindnetd.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

TABLES = {"kube-network-policies": "kube-network-policies", "kindnet-network-policies": "kindnet"}
"""Name of the table -> program."""

_QUEUE = re.compile(r"\bqueue\b.*?(\d+)(?: |$)")


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    program = TABLES.get(rule.table)
    if not program:
        return None
    found = _QUEUE.search(rule.text) if rule.target == "QUEUE" else None
    detail = f"NetworkPolicies, queue {found[1]}, the policy is not shown" if found else f"table {rule.table}"
    return Owner("program", program=program, detail=detail, evidence="table name")
