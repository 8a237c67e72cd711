# SPDX-License-Identifier: Apache-2.0
"""Another connection with the same tuple was inserted into conntrack's table first. Observed: the insertion's verdict."""

from __future__ import annotations

from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.node.namespace_questions import NamespaceInspector
from tracer.util.endpoint_format import format_endpoint


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    if not attempt.syn.detail("confirm"):
        return None
    to = attempt.reached
    return Cause(
        "conntrack race lost",
        "dropped: its connection was not put into conntrack's table, another one with the same addresses and ports"
        f" ({format_endpoint(to.src, to.sport)} -> {format_endpoint(to.dst, to.dport)}) is there already{attempt.where}",
    )
