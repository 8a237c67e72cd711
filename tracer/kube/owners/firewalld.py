# SPDX-License-Identifier: Apache-2.0
"""firewalld: tables firewalld and firewalld_policy_drop; with the iptables back end chains of zones, and *_direct.

Rules in *_direct are those of `firewall-cmd --direct`, which the administrator wrote. The chain of a zone has a general name
(IN_public, IN_public_allow), so it counts only if one of firewalld's shared chains leads to the zone.
Source: firewalld src/firewall/core/nftables.py, ipXtables.py.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.kube.owners.by_name import ExactNames
from tracer.kube.rule_text import siblings
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

_SHARED = (
    "INPUT_ZONES", "INPUT_ZONES_SOURCE", "FORWARD_IN_ZONES", "FORWARD_IN_ZONES_SOURCE", "FORWARD_OUT_ZONES",
    "FORWARD_OUT_ZONES_SOURCE", "FORWARD_ZONES", "PREROUTING_ZONES", "PREROUTING_ZONES_SOURCE", "POSTROUTING_ZONES",
    "POSTROUTING_ZONES_SOURCE",
)  # fmt: skip
"""Chains that lead to those of the zones."""

NAMES = ExactNames("firewalld", chains=re.compile("|".join(_SHARED)), tables=frozenset({"firewalld", "firewalld_policy_drop"}))

_DIRECT = re.compile(r"(PREROUTING|INPUT|FORWARD|OUTPUT|POSTROUTING)_direct")
_ZONE = re.compile(r"((?:IN|FWDI|FWDO|FWD|PRE|POST|OUT)_[\w-]+?)(?:_(?:pre|log|deny|allow|post))?")


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    if _DIRECT.fullmatch(rule.chain):
        return Owner("administrator", detail=rule.chain, evidence="chain name")
    if _DIRECT.fullmatch(rule.target) and rule.target.startswith(rule.chain):
        return Owner("program", program=NAMES.program, detail=f"chain {rule.target}", evidence="chain it jumps to")
    return NAMES.owner(rule) or _of_zone(rule, ruleset)


def _of_zone(rule: Rule, ruleset: Ruleset) -> Owner | None:
    zone = _ZONE.fullmatch(rule.chain)
    if not zone or not any(r.target in (zone[1], rule.chain) for c in _SHARED for r in siblings(rule, ruleset, c)):
        return None
    return Owner("program", program=NAMES.program, detail=f"chain {rule.chain}", evidence="chain that jumps to it")
