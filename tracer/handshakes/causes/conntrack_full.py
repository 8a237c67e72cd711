# SPDX-License-Identifier: Apache-2.0
"""Conntrack's table was full. Observed: early_drop found nothing to remove, and the drop that followed on that CPU. The number
of entries is read later, so the text has it only where it is still near the limit."""

from __future__ import annotations

from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.node.namespace_questions import NamespaceInspector, NamespaceSetting
from tracer.util.questions import value_of

COUNT, LIMIT = (NamespaceSetting(f"net/netfilter/nf_conntrack_{name}", is_volatile=True) for name in ("count", "max"))
ASKS = (COUNT, LIMIT)
NEARLY = 0.95
"""Share of the limit from which the table counts as full: a few entries may expire between the packet and the reading."""


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    if not attempt.syn.detail("table-full"):
        return None
    count, most = (value_of(inspector.ask(question, attempt.place)) or "" for question in ASKS)
    shows = count.isdigit() and most.isdigit() and int(count) >= NEARLY * int(most)
    size = f" ({count} of {most} entries when it was read afterwards)" if shows else ""
    return Cause("conntrack table full", f"dropped: conntrack's table is full{size}{attempt.where}")
