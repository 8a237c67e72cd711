# SPDX-License-Identifier: Apache-2.0
"""Causes of SYN verdicts: each cause is one file of this package, named after the cause.

A file has `classify(attempt, inspector)`, which returns the Cause, or None when the evidence shows something else. ORDER lists
the files by precedence: a cause that ended the SYN comes before an event on its path. The last file always returns a cause.

A file that asks questions about a namespace declares them as ASKS (tracer/node/namespace_questions.py), so that a recording
without explanation asks them ahead. An answer may be NotAsked in a replay: then the cause omits the statement.

Must not know: other causes, how a cause is shown.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from tracer.model.handshake import Cause, ConnectionAttempt
from tracer.node.namespace_questions import NamespaceInspector, NamespaceQuestion
from tracer.packets.shared_path import shared_hops
from tracer.util.registry import Registry

Classify = Callable[[ConnectionAttempt, NamespaceInspector], Cause | None]
Questions = tuple[NamespaceQuestion[Any, Any], ...]

ORDER = (
    "no_endpoints", "rejected_by_rule", "dropped_by_rule", "conntrack_full", "conntrack_race", "time_wait", "paws",
    "accept_queue", "syn_queue", "tw_recycle", "stale_connection", "conntrack_invalid", "answered_from_other_address",
    "no_listener", "no_route", "neighbour_unresolved", "dropped", "syn_cookie", "half_open_retry", "unrecognised", "accepted",
    "half_open", "refused_remotely", "no_answer", "events_lost",
)  # fmt: skip
OF_PATH = frozenset(
    {
        "no_endpoints", "rejected_by_rule", "dropped_by_rule", "conntrack_full", "conntrack_race", "time_wait", "paws",
        "syn_queue", "stale_connection", "conntrack_invalid", "no_listener", "no_route", "neighbour_unresolved", "dropped",
        "syn_cookie", "half_open_retry",
    }
)  # fmt: skip
"""Files that decide by the path of the SYN alone whether their cause applies: not by its values, its answers, or a question.
Those that did not apply to a SYN are not asked again for SYNs on its path."""

_CAUSES: Registry[Classify] = Registry(__name__, "classify")


@cache
def causes() -> tuple[tuple[str, Classify], ...]:
    """All causes, in ORDER. Raises LookupError for a file that ORDER does not name."""
    return _CAUSES.in_order(ORDER)


def declared_questions() -> dict[str, Questions]:
    """The questions that each cause declares, by its file name."""
    none: Questions = ()
    return _CAUSES.values("ASKS", none)


class _AskedAgain(NamedTuple):
    """What is kept for a path: the causes that may apply to SYNs on it, by precedence."""

    causes: tuple[tuple[str, Classify], ...]


def cause_of(attempt: ConnectionAttempt, inspector: NamespaceInspector) -> Cause:
    """The one cause of a SYN."""
    hops = shared_hops(attempt.syn)
    kept = hops.path.kept.get(cause_of) if hops else None
    asked = kept if isinstance(kept, _AskedAgain) else _AskedAgain(causes())
    excluded = []
    for name, classify in asked.causes:
        if found := classify(attempt, inspector):
            break
        excluded += [name] if name in OF_PATH else []
    assert found
    if hops and excluded:
        hops.path.kept[cause_of] = _AskedAgain(tuple([each for each in asked.causes if each[0] not in excluded]))
    return found
