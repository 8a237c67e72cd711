# SPDX-License-Identifier: Apache-2.0
"""The listener's accept queue is full: its process does not accept. Observed: the queue when the SYN or the handshake's last
ACK arrived; the kernel dropped it."""

from __future__ import annotations

from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.model.hop import Handshake, HandshakeHop, alike_of
from tracer.node.namespace_questions import NamespaceInspector


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    detail = attempt.syn.detail("listener")
    shake = attempt.syn.handshake
    if shake and shake.stage == "SYN" and shake.accepted is False:
        queue, limit = (detail.number("accept_queue"), detail.number("accept_limit")) if detail else _queue(shake)
        return _full(attempt, queue, limit, "dropped") if queue > limit else None
    for packet in attempt.acks:
        for hop in alike_of(packet.hops, HandshakeHop):
            handshake = hop.handshake
            if handshake.stage == "ACK" and handshake.accepted is False and handshake.accept_queue_full:
                return _full(attempt, *_queue(handshake), "answered, but the client's ACK was dropped")
    return None


def _queue(shake: Handshake) -> tuple[int, int]:
    return shake.accept_queue, shake.accept_limit


def _full(attempt: ConnectionAttempt, queue: int, limit: int, what: str) -> Cause:
    who = attempt.process
    return Cause("accept queue full", f"{what}: accept queue full {queue}/{limit}{attempt.where}, {who} is slow to accept")
