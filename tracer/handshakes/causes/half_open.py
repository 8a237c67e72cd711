# SPDX-License-Identifier: Apache-2.0
"""The SYN was answered, but no ACK of the client arrived: the ACK or the SYN-ACK was lost, or the client sent none. Observed:
the SYN-ACK left, no ACK was seen for a second. Where ACKs are not recorded, the text has only the answer."""

from __future__ import annotations

from tracer.handshakes._cause_helpers import LIMITED, formatted_loss
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.node.namespace_questions import NamespaceInspector
from tracer.util.endpoint_format import format_endpoint


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    shake = attempt.syn.handshake
    if shake and shake.accepted:
        by = f"{attempt.process}{attempt.where}"
        waiting = f", SYN queue {shake.syn_queue}" if shake.syn_queue else ""
    elif attempt.synacks:
        by, waiting = format_endpoint(attempt.reached.dst, attempt.reached.dport), ""
    else:
        return None
    if attempt.partial or attempt.one_sided:
        return Cause("answered", f"answered by {by}; what came after it was not recorded", good=True)
    ack = "the client's ACK has not come"
    if attempt.limited:
        ack = f"the client's ACK was not awaited: {LIMITED}"
    elif attempt.doubtful:
        ack = f"the client's ACK was not seen, while packets were {formatted_loss(attempt)}"
    return Cause("half-open", f"answered by {by}, {ack}{waiting}", good=True)
