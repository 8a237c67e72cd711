# SPDX-License-Identifier: Apache-2.0
"""The SYN was forwarded or sent, and no answer came within a second. Derived: no answer was seen; the destination should have
answered."""

from __future__ import annotations

from tracer.model.evidence import Evidence
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.model.hop import RewriteHop
from tracer.model.packet import Outcome
from tracer.node.namespace_questions import NamespaceInspector
from tracer.util.endpoint_format import format_endpoint


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    if (
        attempt.one_sided
        or attempt.syn.outcome not in (Outcome.FORWARDED, Outcome.SENT)
        or not attempt.syn.complete
        or attempt.doubtful
    ):
        return None
    hop = next((h for h in reversed(attempt.syn.hops) if h.out_iface and not h.clone), None)
    by = f" by {hop.out_iface}" if hop else ""
    owners = (h.owner for h in reversed(attempt.syn.hops) if isinstance(h, RewriteHop))
    owner = next((each for each in owners if each and each.target), None)
    who = f", {owner.target}," if owner else ""
    target = format_endpoint(attempt.reached.dst, attempt.reached.dport)
    return Cause(
        "no answer", f"left{by}{attempt.where}, no SYN-ACK in 1 s: {target}{who} should have answered", Evidence.DERIVED
    )
