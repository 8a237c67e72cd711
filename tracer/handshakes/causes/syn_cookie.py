# SPDX-License-Identifier: Apache-2.0
"""It was answered with a SYN cookie, because the SYN queue was full or cookies are always on. Observed: the cookie was made
and the SYN-ACK sent; the queue when the SYN arrived."""

from __future__ import annotations

from tracer.handshakes import _cause_helpers
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.node.namespace_questions import NamespaceInspector

ENDS = {"connected": "the client came back with it", "refused": "the client came back with it and was dropped"}


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    shake, detail = attempt.syn.handshake, attempt.syn.detail("listener")
    if not shake or not shake.cookie or not shake.accepted:
        return None
    reason = ""
    if detail:
        waiting, limit = detail.number("syn_queue"), detail.number("accept_limit")
        reason = f": SYN queue full {waiting}/{limit}" if waiting >= limit else ": tcp_syncookies is 2, always"
    done = ENDS.get(_cause_helpers.completion(attempt), "the client has not come back with it")
    return Cause(
        "SYN cookie sent", f"answered with a SYN cookie by {attempt.process}{attempt.where}{reason}; {done}", good=True
    )
