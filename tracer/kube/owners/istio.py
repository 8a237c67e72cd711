# SPDX-License-Identifier: Apache-2.0
"""Istio: chains ISTIO_*, of sidecars and of ambient mode, in the pods' network namespaces; nftables tables since 1.27.

The tables' chains have general names, such as output, so the table decides. ISTIO_POSTRT of ambient mode is on the node.
Source: istio tools/istio-iptables/pkg/constants, tools/istio-nftables/pkg/constants, cni/pkg/iptables.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.kube.owners.by_name import ExactNames
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

NAMES = ExactNames(
    "Istio",
    chains=re.compile(r"ISTIO_(INBOUND|OUTPUT|REDIRECT|IN_REDIRECT|OUTPUT_DNS|DIVERT|TPROXY|DROP|PREROUTING|PRERT|POSTRT)"),
    tables=frozenset(f"istio-{mode}-{table}" for mode in ("proxy", "ambient") for table in ("nat", "mangle", "raw")),
)


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    return NAMES.owner(rule)
