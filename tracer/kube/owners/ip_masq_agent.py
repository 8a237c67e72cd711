# SPDX-License-Identifier: Apache-2.0
"""ip-masq-agent: the chain IP-MASQ-AGENT or, by --masq-chain, another one; comments "ip-masq-agent: ...".

IP-MASQ, the chain that the agent uses on GKE, is first made by the script that sets up a node of Google's cloud, with comments
"ip-masq: ...". A rule in it without a comment may be of either. Azure's agent writes its comments in quotes.
Source: ip-masq-agent cmd/ip-masq-agent/ip-masq-agent.go; kubernetes cluster/gce/gci/configure-helper.sh.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.kube.rule_text import BASE
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

PROGRAM, SETUP = "ip-masq-agent", "setup of a Google node"

CHAIN, SHARED_CHAIN = "IP-MASQ-AGENT", "IP-MASQ"

_BY_COMMENT = {PROGRAM: re.compile(r'"?ip-masq-agent: .*'), SETUP: re.compile(r"ip-masq: .*")}


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    if rule.table != "nat":
        return None
    own = rule.target if rule.chain in BASE else rule.chain
    for program, comment in _BY_COMMENT.items():
        if comment.fullmatch(rule.comment):
            return Owner("program", program=program, detail=f"chain {own}", evidence="comment")
    if own == CHAIN:
        return Owner("program", program=PROGRAM, detail=f"chain {own}", evidence="chain name")
    if own == SHARED_CHAIN:
        return Owner("unknown", evidence=f"chain name: of {PROGRAM}, or of the {SETUP}")
    return None
