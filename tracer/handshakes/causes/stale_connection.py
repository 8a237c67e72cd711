# SPDX-License-Identifier: Apache-2.0
"""An old connection of the same addresses and ports still exists: the kernel sends its peer a challenge ACK, and drops the SYN.

Observed: the socket that took the SYN, its state, and the drop reason.
"""

from __future__ import annotations

from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.model.hop import SocketHop, alike_of
from tracer.node.namespace_questions import NamespaceInspector

LIVE = frozenset({"ESTABLISHED", "FIN_WAIT1", "FIN_WAIT2", "CLOSE_WAIT", "LAST_ACK", "CLOSING", "SYN_RECV"})


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    taken = alike_of(attempt.syn.hops, SocketHop)
    if not taken or taken[-1].socket.state not in LIVE:
        return None
    return Cause(
        "old connection",
        f"not taken: a connection of the same ports still lives{attempt.where} ({taken[-1].socket.state}, challenged)",
    )
