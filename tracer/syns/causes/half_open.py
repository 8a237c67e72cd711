"""Answered, but the client has not come back: its ACK or the SYN-ACK was lost, or it never meant to. Observed: the SYN-ACK
left, no ACK was seen for a second."""

from __future__ import annotations

from tracer.place import place
from tracer.syns.model import Attempt, Cause
from tracer.syns.spaces import Spaces


def why(attempt: Attempt, spaces: Spaces) -> Cause | None:
    shake = attempt.syn.handshake
    if shake and shake.accepted:
        waiting = f", SYN queue {shake.syn_queue}" if shake.syn_queue else ""
        return Cause(
            "half-open", f"answered by {attempt.process}{attempt.where}, the client's ACK has not come{waiting}", good=True
        )
    if attempt.synacks:
        by = place(attempt.reached.dst, attempt.reached.dport)
        return Cause("half-open", f"answered by {by}, the client's ACK has not come", good=True)
    return None
