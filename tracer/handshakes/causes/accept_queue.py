# SPDX-License-Identifier: Apache-2.0
"""The listener's accept queue is full: its process does not accept. Observed: the queue as the SYN, or the handshake's last
ACK, came; the kernel dropped it."""

from __future__ import annotations

from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.model.packet import Handshake
from tracer.node.namespace_view import NamespaceInspector


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    detail = attempt.syn.detail("listener")
    shake = attempt.syn.handshake
    if shake and shake.stage == "SYN" and shake.accepted is False:
        queue, limit = (detail.number("accept_queue"), detail.number("accept_limit")) if detail else _queue(shake)
        return _full(attempt, queue, limit, "dropped") if queue > limit else None
    for packet in attempt.acks:
        for hop in packet.hops:
            told = hop.handshake
            if told and told.stage == "ACK" and told.accepted is False and told.accept_queue_full and not hop.clone:
                return _full(attempt, *_queue(told), "answered, but the client's ACK was dropped")
    return None


def _queue(shake: Handshake) -> tuple[int, int]:
    return shake.accept_queue, shake.accept_limit


def _full(attempt: ConnectionAttempt, queue: int, limit: int, what: str) -> Cause:
    who = attempt.process
    return Cause("accept queue full", f"{what}: accept queue full {queue}/{limit}{attempt.where}, {who} is slow to accept")
