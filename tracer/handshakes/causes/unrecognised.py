# SPDX-License-Identifier: Apache-2.0
"""A SYN-ACK arrived from another address than the client had connected to: it was not translated back. The client resets it.

Observed: the client's reset for that SYN-ACK, or the SYN-ACK dropped as INVALID. The missing translation is derived from its
addresses, which are not those that the client connected to.
"""

from __future__ import annotations

from tracer.model.evidence import Evidence
from tracer.model.handshake import Cause, ConnectionAttempt, last_ends
from tracer.node.namespace_questions import NamespaceInspector
from tracer.packets.outcome import BAD
from tracer.util.endpoint_format import format_endpoint


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    if attempt.acks:
        return None  # the client has acknowledged it
    next_seq = (attempt.syn.seq + 1) & 0xFFFFFFFF
    reset = next((p for p in attempt.resets if p.seq == next_seq and p.tcp_flags == "RST"), None)
    for answer in attempt.synacks:
        seen = last_ends(answer)
        came = f"SYN-ACK came from {format_endpoint(answer.endpoints.src, answer.endpoints.sport)}"
        if answer.complete and seen != attempt.asked.reversed and seen.dst == attempt.asked.src:
            past = f"{came}, not from {format_endpoint(attempt.asked.dst, attempt.asked.dport)}: it passed by the translation"
            by = ", and the client reset it" if reset else ""
            return Cause("SYN-ACK not recognised", past + by, Evidence.OBSERVED if reset else Evidence.DERIVED)
        if answer.outcome in BAD:
            return Cause("SYN-ACK not recognised", f"{came}, but did not get back: {answer.verdict}")
    if reset and not (attempt.partial or attempt.one_sided):  # otherwise an ACK may have come before it
        ends = reset.endpoints
        text = f"the client reset the SYN-ACK: to {format_endpoint(ends.dst, ends.dport)}, while it had asked"
        return Cause("SYN-ACK not recognised", f"{text} {format_endpoint(attempt.asked.dst, attempt.asked.dport)}")
    return None
