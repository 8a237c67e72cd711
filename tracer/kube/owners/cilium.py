# SPDX-License-Identifier: Apache-2.0
"""Cilium: chains CILIUM_*, comments "cilium-feeder:" and "cilium:". Source: pkg/datapath/iptables/iptables.go."""

from __future__ import annotations

from tracer.kube.catalog import ClusterView
from tracer.kube.owners.by_name import by_name
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

PROGRAM = "Cilium"
CHAINS = ("CILIUM_", "OLD_CILIUM_")
COMMENTS = ("cilium-feeder: ", "cilium: ", "cilium ")
TABLES = ("cilium",)


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    return by_name(rule, PROGRAM, CHAINS, TABLES, COMMENTS)
