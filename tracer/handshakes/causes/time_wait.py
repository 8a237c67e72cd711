# SPDX-License-Identifier: Apache-2.0
"""The SYN hit a connection of the same ports in TIME_WAIT, which did not give way to it.

Most often its timestamp is older (PAWS): behind SNAT another client, or another connection of the same client, used the address
and port. Else its sequence number is not beyond the connection's.

Observed: the connection's state, both timestamps, and the kernel's answer.
"""

from __future__ import annotations

from tracer.handshakes import _cause_helpers, timestamp_settings
from tracer.handshakes.timestamp_settings import format_settings, format_snat_clients
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.model.hop import DecisionDetail
from tracer.node.namespace_questions import NamespaceInspector
from tracer.util.endpoint_format import format_endpoint

ASKS = timestamp_settings.ASKS


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    detail = attempt.syn.detail("time-wait")
    if not detail or detail.facts.get("answer") == "taken over":
        return None
    client = format_endpoint(attempt.reached.src, attempt.reached.sport)
    hit = f"it hit a connection in {detail.facts.get('state')}{attempt.where} of the same ports ({client})"
    rest = f"{format_snat_clients(attempt)}{format_settings(attempt, inspector)}"
    if _cause_helpers.is_old(detail):
        tsval, recent = detail.number("tsval"), detail.number("ts_recent")
        age = f"its timestamp {tsval} is older than {recent} of {detail.number('seconds')} s ago"
        return Cause("old timestamp", f"dropped: {hit}, and {age}{rest}")
    if detail.facts.get("answer") == "reset":
        return Cause("connection in TIME_WAIT", f"refused: {hit}, and the kernel answered with a reset{rest}")
    return Cause("connection in TIME_WAIT", f"dropped: {hit}, {_number(detail)}{rest}")


def _number(detail: DecisionDetail) -> str:
    """What is wrong with the SYN's sequence number, as a clause."""
    if detail.facts.get("state") != "TIME_WAIT":
        return "which expects another sequence number"
    same = "tsval" in detail.facts and "ts_recent" in detail.facts
    stamp = f"its timestamp {detail.number('tsval')} is not newer" if same else "there is no timestamp to compare"
    return f"which its sequence number does not go beyond, and {stamp}"
