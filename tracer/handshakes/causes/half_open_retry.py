# SPDX-License-Identifier: Apache-2.0
"""A SYN was sent again while its connection is half-open: the SYN-ACK or the last ACK was lost. Observed: the half-open
connection took it, and answered again."""

from __future__ import annotations

from tracer.handshakes import _cause_helpers
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.model.hop import HandshakeHop
from tracer.node.namespace_questions import NamespaceInspector


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    shakes = (h.handshake for h in _cause_helpers.own_hops(attempt) if isinstance(h, HandshakeHop))
    if not any(shake.stage == "request" for shake in shakes):
        return None
    done = "then connected" if _cause_helpers.completion(attempt) in ("connected", "acknowledged") else "SYN-ACK sent once more"
    return Cause("half-open already", f"repeated, its connection is half-open already{attempt.where}: {done}", good=True)
