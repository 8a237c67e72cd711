# SPDX-License-Identifier: Apache-2.0
"""Another connection with the same tuple came into conntrack's table first. Observed: the insertion's verdict."""

from __future__ import annotations

from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.node.namespace_view import NamespaceInspector
from tracer.util.addresses import place


def why(attempt: ConnectionAttempt, spaces: NamespaceInspector) -> Cause | None:
    if not attempt.syn.clue("confirm"):
        return None
    to = attempt.reached
    return Cause(
        "conntrack race lost",
        "dropped: its connection was not put into conntrack's table, another one with the same addresses and ports"
        f" ({place(to.src, to.sport)} -> {place(to.dst, to.dport)}) is there already{attempt.where}",
    )
