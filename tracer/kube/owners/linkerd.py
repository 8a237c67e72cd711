# SPDX-License-Identifier: Apache-2.0
"""Linkerd: chains PROXY_INIT_* in the pods' network namespaces, comments "proxy-init/" and what the rule is for.

Until 2.13 the time of the installation follows in the comment. Source: linkerd2-proxy-init proxy-init/iptables.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.kube.owners.by_name import ExactNames
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

NAMES = ExactNames(
    "Linkerd",
    chains=re.compile(r"PROXY_INIT_(REDIRECT|OUTPUT)"),
    comments=re.compile(r"proxy-init/[a-z0-9,:/-]+"),
)


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    return NAMES.owner(rule)
