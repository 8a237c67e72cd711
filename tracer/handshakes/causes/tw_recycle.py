# SPDX-License-Identifier: Apache-2.0
"""tcp_tw_recycle: before Linux 4.12 a listener dropped SYNs with a timestamp older than the last one of that address.

Derived: the listener dropped it, its queues were not full, and the setting is on. Newer kernels have no such setting, so only
recordings have this cause.
"""

from __future__ import annotations

from tracer.handshakes import timestamp_settings
from tracer.handshakes.timestamp_settings import format_settings, format_snat_clients
from tracer.model.evidence import Evidence
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.node.namespace_questions import NamespaceInspector, NamespaceSetting
from tracer.util.questions import value_of

RECYCLE = NamespaceSetting("net/ipv4/tcp_tw_recycle")
ASKS = (RECYCLE, *timestamp_settings.ASKS)


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    shake = attempt.syn.handshake
    if not shake or shake.stage != "SYN" or shake.accepted is not False:
        return None
    if value_of(inspector.ask(RECYCLE, attempt.place)) != "1":
        return None
    return Cause(
        "old timestamp",
        "dropped: most likely its TCP timestamp is older than the last one from that address, and tcp_tw_recycle rejects such"
        f" SYNs{format_snat_clients(attempt)}{format_settings(attempt, inspector)}",
        Evidence.DERIVED,
    )
