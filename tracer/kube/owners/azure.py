# SPDX-License-Identifier: Apache-2.0
"""Azure: Azure CNI (AZURECNI*, SWIFT-POSTROUTING), and Azure NPM, which carries out NetworkPolicies (AZURE-NPM*).

NPM's chain of a policy ends with a hash of its name. Source: azure-container-networking iptables, cns/restserver,
npm/pkg/dataplane/policies, npm/util/const.go.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.kube.owners.by_name import ExactNames
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

CNI = ExactNames("Azure CNI", chains=re.compile(r"AZURECNI(INPUT|OUTPUT)|SWIFT-POSTROUTING"))
NPM = ExactNames(
    "Azure NPM",
    chains=re.compile(r"AZURE-NPM(-(ACCEPT|(INGRESS|EGRESS)(-(ALLOW-MARK|DROPS|PORT|FROM|TO|\d+))?|TARGET-SETS))?"),
)


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    return CNI.owner(rule) or NPM.owner(rule)
