# SPDX-License-Identifier: Apache-2.0
"""Cilium: chains CILIUM_*, which feeder rules of built-in chains jump to, with the comment "cilium-feeder: CHAIN".

They redirect to Cilium's proxies (TPROXY), keep packets from conntrack, masquerade, and accept what Cilium forwards. Policies
are in eBPF programs, not in rules. After a restart the chains of before are OLD_CILIUM_* for a moment.
Source: pkg/datapath/iptables/iptables.go.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.kube.owners.by_name import ExactNames
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

PROGRAM = "Cilium"
NAMES = ExactNames(
    PROGRAM,
    re.compile(r"(?:OLD_)?CILIUM_(?:INPUT|OUTPUT|FORWARD|TRANSIENT_FORWARD|PRE|POST)(?:_(?:raw|nat|mangle))?"),
    frozenset({"cilium"}),
    re.compile(r"cilium-feeder: .*"),
)


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    return NAMES.owner(rule)
