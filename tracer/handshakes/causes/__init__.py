# SPDX-License-Identifier: Apache-2.0
"""Why a SYN ended as it did: a cause is one file of this package, named after it.

A file has `why(attempt, spaces)`: the Cause, or None when the evidence is of something else. ORDER has them by what settles a
SYN first: what ended it stands before what merely happened to it, and the last one always speaks.

Must not know: other causes, how a cause is shown.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from functools import cache
from importlib import import_module

from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.node.namespace_view import NamespaceInspector

Why = Callable[[ConnectionAttempt, NamespaceInspector], Cause | None]

ORDER = (
    "no_endpoints", "rejected_by_rule", "dropped_by_rule", "conntrack_full", "conntrack_race", "paws", "accept_queue",
    "syn_queue", "tw_recycle", "stale_connection", "conntrack_invalid", "answered_from_other_address", "no_listener",
    "no_route", "neighbour_unresolved", "dropped", "syn_cookie", "half_open_retry", "unrecognised", "accepted", "half_open",
    "refused_remotely", "no_answer", "events_lost",
)  # fmt: skip


@cache
def causes() -> tuple[tuple[str, Why], ...]:
    """Every cause there is, in ORDER. A file that ORDER does not name is an error."""
    there = {m.name for m in pkgutil.iter_modules(__path__) if m.name[0] != "_"}
    if there != set(ORDER):
        raise LookupError(f"tracer/handshakes/causes: ORDER and files differ: {sorted(there ^ set(ORDER))}")
    return tuple((name, import_module(f"{__name__}.{name}").why) for name in ORDER)


def cause_of(attempt: ConnectionAttempt, spaces: NamespaceInspector) -> Cause:
    """The one cause of a SYN."""
    return next(told for _, why in causes() if (told := why(attempt, spaces)))
