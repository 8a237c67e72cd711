# SPDX-License-Identifier: Apache-2.0
"""A rule or a policy dropped it. Observed: the table's verdict. Conntrack's state INVALID is another cause."""

from __future__ import annotations

from tracer.handshakes import _cause_helpers
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.model.hop import RuleHop, alike_of
from tracer.model.netfilter import Verdict
from tracer.node.namespace_questions import NamespaceInspector


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    hop = next((h for h in alike_of(attempt.syn.hops, RuleHop) if h.verdict is Verdict.DROP), None)
    if not hop or attempt.syn.untracked == "INVALID" or _cause_helpers.matches_invalid(hop):
        return None
    return Cause("dropped by rule", f"DROPped in {hop.place}{attempt.where}{_cause_helpers.formatted_owner(hop)}")
