# SPDX-License-Identifier: Apache-2.0
"""What decides whether a connection in TIME_WAIT gives way to a SYN: settings of its namespace, and an SNAT; as clauses."""

from __future__ import annotations

from tracer.handshakes.snat_clients import find_snat
from tracer.model.handshake import ConnectionAttempt
from tracer.node.namespace_questions import NamespaceInspector, NamespaceSetting
from tracer.util.questions import value_of

ASKS = tuple(NamespaceSetting(f"net/ipv4/{name}") for name in ("tcp_timestamps", "tcp_tw_reuse", "tcp_tw_recycle"))


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
