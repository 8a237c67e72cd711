# SPDX-License-Identifier: Apache-2.0
"""Calico: chains cali-*, comments "cali:" and a hash, tables calico and calico-*. Source: felix/rules, felix/iptables."""

from __future__ import annotations

from tracer.kube.catalog import ClusterView
from tracer.kube.owners.by_name import by_name
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

PROGRAM = "Calico"
CHAINS = ("cali-",)
COMMENTS = ("cali:",)
TABLES = ("calico",)


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    return by_name(rule, PROGRAM, CHAINS, TABLES, COMMENTS)
