# SPDX-License-Identifier: Apache-2.0
"""No process listens on that port. Observed: TCP found no socket, and answered with a reset."""

from __future__ import annotations

from tracer.handshakes import _cause_helpers
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.node.namespace_questions import NamespaceInspector
from tracer.packets.outcome import without_socket
from tracer.util.endpoint_format import format_endpoint


def has_no_listener(attempt: ConnectionAttempt) -> bool:
    """Whether TCP found no socket for it."""
    return without_socket(_cause_helpers.own_hops(attempt)) is not None


def format_answer(attempt: ConnectionAttempt) -> str:
    return ", answered with a reset" if attempt.syn.detail("reset") or attempt.resets else ""


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    if not has_no_listener(attempt):
        return None
    where = attempt.where or " here"
    return Cause(
        "no listener",
        f"no listener on {format_endpoint(attempt.reached.dst, attempt.reached.dport)}{where}{format_answer(attempt)}",
    )
