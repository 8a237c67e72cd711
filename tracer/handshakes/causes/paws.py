# SPDX-License-Identifier: Apache-2.0
"""TCP timestamps seem to go back (PAWS): shortly before, a client with another clock used the same address and port.

Observed: the SYN hit a connection in TIME_WAIT, both timestamps, the answer; or the kernel's own drop reason.
"""

from __future__ import annotations

from tracer.handshakes import _cause_helpers
from tracer.handshakes.snat_clients import find_snat
from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.node.namespace_questions import NamespaceInspector, NamespaceSetting
from tracer.util.endpoint_format import format_endpoint
from tracer.util.questions import value_of

REASONS = frozenset({"TCP_RFC7323_PAWS", "TCP_RFC7323_TW_PAWS", "TCP_RFC7323_PAWS_ACK"})
ASKS = tuple(NamespaceSetting(f"net/ipv4/{name}") for name in ("tcp_timestamps", "tcp_tw_reuse", "tcp_tw_recycle"))


def classify(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause | None:
    detail = attempt.syn.detail("time-wait")
    if detail and detail.facts.get("answer") != "taken over":
        return Cause("old timestamp", f"dropped: {_hit(attempt)}{format_settings(attempt, inspector)}")
    drop = attempt.syn.drop
    if drop and drop.reason in REASONS:
        return Cause(
            "old timestamp", f"dropped: its TCP timestamp is older than the connection's{format_settings(attempt, inspector)}"
        )
    return None


def _hit(attempt: ConnectionAttempt) -> str:
    detail = attempt.syn.detail("time-wait")
    assert detail
    client = format_endpoint(attempt.reached.src, attempt.reached.sport)
    hit = f"it hit a connection in {detail.facts.get('state')}{attempt.where} of the same ports ({client})"
    if "tsval" in detail.facts and "ts_recent" in detail.facts:
        tsval, recent = detail.number("tsval"), detail.number("ts_recent")
        if _cause_helpers.is_older(tsval, recent):
            age = f"its timestamp {tsval} is older than {recent} of {detail.number('seconds')} s ago"
            return f"{hit}, and {age}{format_snat_clients(attempt)}"
    return f"{hit}, which its sequence number does not go beyond{format_snat_clients(attempt)}"


def format_snat_clients(attempt: ConnectionAttempt) -> str:
    """The address translation that gives several clients one address, as a clause; "" where there is none."""
    nat = find_snat(attempt.syn)
    if not nat:
        return ""
    many = f"{attempt.clients} clients" if attempt.clients > 1 else "clients"
    return f"; {nat.kind} gives {many} the one address {nat.after.src}"


def format_settings(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> str:
    """The current values of the relevant sysctls, as a clause; "" where they were not read.

    Every kernel has the first one; another one without a value does not exist. One that was not asked is left out.
    """
    values = [(setting.name.rpartition("/")[2], value_of(inspector.ask(setting, attempt.place))) for setting in ASKS]
    if not values[0][1]:
        return ""
    return "; " + ", ".join(f"{name} {value or 'does not exist'}" for name, value in values if value is not None)
