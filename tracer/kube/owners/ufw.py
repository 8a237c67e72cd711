# SPDX-License-Identifier: Apache-2.0
"""ufw: chains ufw-* for IPv4 and ufw6-* for IPv6. The rules of `ufw allow` and `ufw deny` are in ufw-user-*.

Chains of other programs for ufw, such as ufw-docker-logging-deny, are not its own. Source: ufw src/ufw-init-functions.
"""

from __future__ import annotations

import re

from tracer.kube.catalog import ClusterView
from tracer.kube.owners.by_name import ExactNames
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

_WAY = r"(input|output|forward)"

NAMES = ExactNames(
    "ufw",
    chains=re.compile(
        rf"ufw6?-((before|after|before-logging|after-logging|reject|track|user|user-logging|skip-to-policy)-{_WAY}"
        r"|logging-(deny|allow)|user-limit(-accept)?|not-local)"
    ),
)


def owner(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner | None:
    return NAMES.owner(rule)
