# SPDX-License-Identifier: Apache-2.0
"""A SYN-ACK came, but not as the answer to what the client had asked: it passed by the translation. The client resets it.

Observed: the client's reset for that SYN-ACK, or the SYN-ACK dropped as INVALID; that it came by another way is derived from
its addresses, which are not those that the client asked.
"""

from __future__ import annotations

from tracer.model.evidence import Evidence
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.model.packet import Endpoints, Packet
from tracer.node.namespace_view import NamespaceInspector
from tracer.packets.outcome import BAD
from tracer.util.endpoint_format import format_endpoint


def last_ends(packet: Packet) -> Endpoints:
    """Its ends as they were when it was last seen."""
    return next((h.nat.after for h in reversed(packet.hops) if h.nat and not h.clone), packet.endpoints)


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    if attempt.acks:
        return None  # the client has gone on from it
    following = (attempt.syn.seq + 1) & 0xFFFFFFFF
    reset = next((p for p in attempt.resets if p.seq == following and p.tcp_flags == "RST"), None)
    for answer in attempt.synacks:
        seen = last_ends(answer)
        came = f"SYN-ACK came from {format_endpoint(answer.endpoints.src, answer.endpoints.sport)}"
        if answer.complete and seen != attempt.asked.reversed and seen.dst == attempt.asked.src:
            past = f"{came}, not from {format_endpoint(attempt.asked.dst, attempt.asked.dport)}: it passed by the translation"
            by = ", and the client reset it" if reset else ""
            return Cause("SYN-ACK not recognised", past + by, Evidence.OBSERVED if reset else Evidence.DERIVED)
        if answer.outcome in BAD:
            return Cause("SYN-ACK not recognised", f"{came}, but did not get back: {answer.verdict}")
    if reset and not attempt.partial:  # else an ACK may have come before it
        ends = reset.endpoints
        told = f"the client reset the SYN-ACK: to {format_endpoint(ends.dst, ends.dport)}, while it had asked"
        return Cause("SYN-ACK not recognised", f"{told} {format_endpoint(attempt.asked.dst, attempt.asked.dport)}")
    return None
