# SPDX-License-Identifier: Apache-2.0
"""Another connection with the same tuple came into conntrack's table first. Observed: the insertion's verdict."""

from __future__ import annotations

from tracer.model.handshake import Attempt, Cause
from tracer.node.namespace_view import Spaces
from tracer.util.addresses import place


def why(attempt: Attempt, spaces: Spaces) -> Cause | None:
    if not attempt.syn.clue("confirm"):
        return None
    to = attempt.reached
    return Cause(
        "conntrack race lost",
        "dropped: its connection was not put into conntrack's table, another one with the same addresses and ports"
        f" ({place(to.src, to.sport)} -> {place(to.dst, to.dport)}) is there already{attempt.where}",
    )
