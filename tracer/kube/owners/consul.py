# SPDX-License-Identifier: Apache-2.0
"""Consul's service mesh: chains CONSUL_PROXY_* and CONSUL_DNS_REDIRECT in the pods' network namespaces, table consul_tproxy.

Source: consul sdk/iptables, sdk/nftables.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.kube.owners.by_name import ExactNames
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

NAMES = ExactNames(
    "Consul",
    chains=re.compile(r"CONSUL_PROXY_(INBOUND|IN_REDIRECT|OUTPUT|REDIRECT)|CONSUL_DNS_REDIRECT"),
    tables=frozenset({"consul_tproxy"}),
)


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    return NAMES.owner(rule)
