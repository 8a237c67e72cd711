# SPDX-License-Identifier: Apache-2.0
"""A rule, or IPVS, answered it with an ICMP error or a TCP reset. Observed: the verdict, and the answer that was sent."""

from __future__ import annotations

from tracer.handshakes import _cause_helpers
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.model.hop import DecidingHop
from tracer.model.netfilter import Verdict
from tracer.node.namespace_questions import NamespaceInspector


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    deciding = (h for h in _cause_helpers.own_hops(attempt) if isinstance(h, DecidingHop))
    hop = next((h for h in deciding if h.verdict is Verdict.REJECT), None)
    if not hop:
        return None
    return Cause(
        "rejected",
        f"REJECTed {_cause_helpers.formatted_actor(attempt.syn, hop)}{attempt.where}{_cause_helpers.formatted_owner(hop)}",
    )
