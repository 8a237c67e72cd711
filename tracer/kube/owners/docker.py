# SPDX-License-Identifier: Apache-2.0
"""Docker: chains DOCKER and DOCKER-*, tables docker-bridges, DOCKER_* for DNS in a container's network namespace.

Rules in DOCKER-USER belong to the administrator, except Docker's last RETURN. A chain that only begins like one of Docker's
belongs to the administrator. Source: moby libnetwork/iptables, daemon/libnetwork/drivers/bridge, libnetwork/resolver_unix.go.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.kube.rule_text import BASE
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

PROGRAM = "Docker"
TABLES = ("docker-bridges",)

_OWN = re.compile(r"DOCKER(-(FORWARD|BRIDGE|CT|INTERNAL|INGRESS|USER|ISOLATION(-STAGE-[12])?))?|DOCKER_(OUTPUT|POSTROUTING)")

_BRIDGE = r"(docker0|br-[0-9a-f]{12})"
_SHAPES = (
    re.compile(rf"-s \S+ ! -o {_BRIDGE} -j MASQUERADE"),
    re.compile(rf"-o {_BRIDGE} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"),
    re.compile(rf"-i {_BRIDGE} ! -o \1 -j ACCEPT"),
    re.compile(rf"-i {_BRIDGE} -o \1 -j (?:ACCEPT|DROP)"),
)
"""The exact rules of Docker in built-in chains. Other rules with docker0 can belong to any program."""


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    if rule.table in TABLES:
        return Owner("program", program=PROGRAM, detail=f"table {rule.table}", evidence="table name")
    if rule.chain == "DOCKER-USER":
        last = rule.text in ("-j RETURN", "return") and rule.number == len(ruleset.chain(rule.family, rule.table, rule.chain))
        mine = Owner("program", program=PROGRAM, detail=rule.chain, evidence="chain name")
        return mine if last else Owner("administrator", detail=rule.chain, evidence="chain name")
    if _is_own(rule.chain):
        return Owner("program", program=PROGRAM, detail=rule.chain, evidence="chain name")
    if rule.chain in BASE and _is_own(rule.target):
        return Owner("program", program=PROGRAM, detail=rule.target, evidence="chain it jumps to")
    if rule.chain in ("FORWARD", "POSTROUTING") and any(s.fullmatch(rule.text) for s in _SHAPES):
        return Owner("program", program=PROGRAM, evidence="shape of the rule")
    return None


def _is_own(chain: str) -> bool:
    return _OWN.fullmatch(chain) is not None
