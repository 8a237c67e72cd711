# SPDX-License-Identifier: Apache-2.0
"""The listener's SYN queue is full and SYN cookies are off. Observed: queue, limits and setting when the SYN arrived; the
kernel dropped it. The check is the kernel's: the last quarter of the backlog is reserved for peers that are known to exist."""

from __future__ import annotations

from tracer.handshakes import _cause_helpers
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.node.namespace_questions import NamespaceInspector


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    detail, shake = attempt.syn.detail("listener"), attempt.syn.handshake
    if not detail or not shake or shake.stage != "SYN" or shake.accepted is not False or detail.number("syncookies"):
        return None
    waiting, limit, backlog = (detail.number(name) for name in ("syn_queue", "accept_limit", "syn_backlog"))
    who = attempt.process
    if waiting >= limit:
        return Cause("SYN queue full", f"dropped: SYN queue full {waiting}/{limit}{attempt.where}, SYN cookies off, {who}")
    if backlog and backlog - waiting < backlog >> 2:
        full = f"SYN queue {waiting}, and tcp_max_syn_backlog {backlog} keeps its last quarter for known peers"
        return Cause(
            "SYN queue full", f"dropped: {full}{attempt.where}, SYN cookies off, {who} ({_cause_helpers.format_queues(detail)})"
        )
    return None
