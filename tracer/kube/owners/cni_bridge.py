# SPDX-License-Identifier: Apache-2.0
"""The CNI plugins bridge and ptp with ipMasq, and the plugin firewall: chains CNI-<hash>, CNI-FORWARD, CNI-ADMIN.

As with portmap, the comment has the sandbox's id. Rules in CNI-ADMIN belong to the administrator.
Source: containernetworking/plugins, pkg/ip/ipmasq_iptables_linux.go, pkg/utils/utils.go, plugins/meta/firewall/iptables.go.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.kube.rule_text import BASE
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

BRIDGE, FIREWALL = "CNI bridge", "CNI firewall"

_CHAIN = re.compile(r"CNI-[0-9a-f]{24}")
_ID = re.compile(r'^name: "[^"]*" id: "([^"]+)"$')


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    if _CHAIN.fullmatch(rule.chain) or (rule.chain in BASE and _CHAIN.fullmatch(rule.target)):
        return _of_pod(rule, cluster)
    if rule.chain == "CNI-ADMIN":
        return Owner("administrator", detail=rule.chain, evidence="chain name")
    if rule.chain == "CNI-FORWARD" or (rule.chain in BASE and rule.target in ("CNI-FORWARD", "CNI-ADMIN")):
        return Owner("program", program=FIREWALL, detail="CNI-FORWARD", evidence="chain name")
    return None


def _of_pod(rule: Rule, cluster: ClusterView) -> Owner:
    found = _ID.search(rule.comment)
    sandbox = cluster.sandboxes.of(found[1]) if found else None
    if not sandbox:
        return Owner("unknown", program=BRIDGE, evidence="chain name")
    return Owner("Pod", sandbox.namespace, sandbox.name, "", BRIDGE, "ipMasq", "", "", "CNI result cache")
