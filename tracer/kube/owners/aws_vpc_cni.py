# SPDX-License-Identifier: Apache-2.0
"""Amazon VPC CNI: chains AWS-SNAT-CHAIN-<n> and AWS-CONNMARK-CHAIN-<n>, comments "AWS, ...", table aws-cni.

The rules that restore the connection's mark are in built-in chains and known by their comments alone.
Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, and its nftables back end.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.kube.owners.by_name import ExactNames
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

NAMES = ExactNames(
    "Amazon VPC CNI",
    chains=re.compile(r"AWS-(SNAT|CONNMARK)-CHAIN-\d+"),
    tables=frozenset({"aws-cni"}),
    comments=re.compile(r"AWS, (SNAT|CONNMARK|primary ENI|outbound connections)|AWS SNAT CHAIN( EXCLUSION)?"),
)


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    return NAMES.owner(rule)
