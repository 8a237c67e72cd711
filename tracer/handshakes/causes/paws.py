# SPDX-License-Identifier: Apache-2.0
"""TCP timestamps seem to go back (PAWS): a connection with another clock has, or had, the same addresses and ports.

Observed: the kernel's own drop reason.
"""

from __future__ import annotations

from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.node.namespace_questions import NamespaceInspector

REASONS = frozenset({"TCP_RFC7323_PAWS", "TCP_RFC7323_TW_PAWS", "TCP_RFC7323_PAWS_ACK"})


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    drop = attempt.syn.drop
    if drop and drop.reason in REASONS:
        return Cause("old timestamp", "dropped: its TCP timestamp is older than the connection's")
    return None
