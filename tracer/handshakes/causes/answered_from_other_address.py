# SPDX-License-Identifier: Apache-2.0
"""A process listens on that port, but on another address. Observed: no socket took the SYN, and the sockets that listen now."""

from __future__ import annotations

from tracer.handshakes.causes import no_listener
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.node.namespace_questions import ListenerProcess, NamespaceInspector, NamespaceListeners
from tracer.node.procnet import BoundSocket
from tracer.util.endpoint_format import format_endpoint
from tracer.util.questions import value_of

LISTENERS, PROCESS = NamespaceListeners(), ListenerProcess()
ASKS = (LISTENERS, PROCESS)


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    if not no_listener.has_no_listener(attempt):
        return None
    port = attempt.reached.dport
    sockets = value_of(inspector.ask(LISTENERS, attempt.place)) or ()
    others = [b for b in sockets if b.port == port and not b.takes(attempt.reached.dst)]
    if not others:
        return None
    who = ", ".join(_listener(b, inspector) for b in others)
    asked = f"no listener on {format_endpoint(attempt.reached.dst, port)}{attempt.where}"
    return Cause("listener on another address", f"{asked}, but {who}{no_listener.format_answer(attempt)}")


def _listener(bound: BoundSocket, inspector: NamespaceInspector) -> str:
    who = value_of(inspector.ask(PROCESS, bound.inode))
    return (
        f"{who} listens on {format_endpoint(bound.address, bound.port)}"
        if who
        else f"a process listens on {format_endpoint(bound.address, bound.port)}"
    )
