# SPDX-License-Identifier: Apache-2.0
"""The SYN was answered, and the client's ACK arrived: connected. Observed: the last ACK made a socket here, or was forwarded to
the sender of the SYN-ACK."""

from __future__ import annotations

from tracer.handshakes import _cause_helpers
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.node.namespace_questions import NamespaceInspector
from tracer.util.endpoint_format import format_endpoint


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    done = _cause_helpers.completion(attempt)
    shake = attempt.syn.handshake
    if done == "connected" or (done == "acknowledged" and shake and shake.accepted):
        detail = attempt.syn.detail("listener")
        hit = attempt.syn.detail("time-wait")
        queue = f", accept queue {detail.number('accept_queue')}/{detail.number('accept_limit')}" if detail else ""
        reused = ", taking over a connection in TIME_WAIT of the same ports" if hit else ""
        return Cause("accepted", f"accepted by {attempt.process}{attempt.where}{queue}{reused}", good=True)
    if done == "acknowledged" and attempt.synacks:
        reached = attempt.reached
        return Cause("accepted", f"answered by {format_endpoint(reached.dst, reached.dport)} and acknowledged", good=True)
    return None
