# SPDX-License-Identifier: Apache-2.0
"""Conntrack gives the SYN the state INVALID, so it was not translated. Observed where a rule that matches this state dropped
it; derived where the hooks saw it without an entry in a namespace that tracks connections."""

from __future__ import annotations

from tracer.handshakes import _cause_helpers
from tracer.model.evidence import Evidence
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.model.hop import RuleHop, alike_of
from tracer.model.netfilter import Verdict
from tracer.node.namespace_questions import NamespaceInspector


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    hop = next((h for h in alike_of(attempt.syn.hops, RuleHop) if h.verdict is Verdict.DROP), None)
    matched = bool(hop and _cause_helpers.matches_invalid(hop))
    if attempt.syn.untracked != "INVALID" and not matched:
        return None
    end = f"DROPped in {hop.place}{_cause_helpers.formatted_owner(hop)}" if hop else attempt.syn.verdict
    return Cause(
        "conntrack INVALID",
        f"conntrack state INVALID{attempt.where}: {end}",
        Evidence.OBSERVED if matched else Evidence.DERIVED,
    )
