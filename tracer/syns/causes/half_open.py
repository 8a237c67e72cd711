# SPDX-License-Identifier: Apache-2.0
"""Answered, but the client has not come back: its ACK or the SYN-ACK was lost, or it never meant to. Observed: the SYN-ACK
left, no ACK was seen for a second. Where ACKs are not recorded, only the answer is told."""

from __future__ import annotations

from tracer.place import place
from tracer.syns.model import Attempt, Cause
from tracer.syns.spaces import Spaces


def why(attempt: Attempt, spaces: Spaces) -> Cause | None:
    shake = attempt.syn.handshake
    ack = "the client's ACK has not come" if not attempt.doubtful else "the client's ACK was not seen, while packets were lost"
    if shake and shake.accepted:
        waiting = f", SYN queue {shake.syn_queue}" if shake.syn_queue else ""
        return Cause("half-open", f"answered by {attempt.process}{attempt.where}, {ack}{waiting}", good=True)
    if attempt.synacks:
        by = place(attempt.reached.dst, attempt.reached.dport)
        if attempt.partial:
            return Cause("answered", f"answered by {by}; what came after it was not recorded", good=True)
        return Cause("half-open", f"answered by {by}, {ack}", good=True)
    return None
