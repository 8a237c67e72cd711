# SPDX-License-Identifier: Apache-2.0
"""The SYN was forwarded or sent, and refused outside this node: a reset or an ICMP error came back. Observed: the answer."""

from __future__ import annotations

from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.node.namespace_questions import NamespaceInspector
from tracer.packets import icmp
from tracer.util.endpoint_format import format_endpoint


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    next_seq = (attempt.syn.seq + 1) & 0xFFFFFFFF
    for packet in attempt.resets:
        if packet.ack == next_seq:
            start = f" (from {packet.netns})" if not packet.hops[0].in_iface else ""
            return Cause(
                "refused elsewhere",
                f"answered with a reset by {format_endpoint(packet.endpoints.src, packet.endpoints.sport)}{start}",
            )
    for packet in attempt.errors:
        name = icmp.error_name(packet) or f"an {packet.protocol} error"
        return Cause("refused elsewhere", f"answered with {name} by {packet.endpoints.src}")
    return None
