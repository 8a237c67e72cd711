"""Words for the rules that acted, shared by the formats."""

from __future__ import annotations

from collections.abc import Sequence

from tracer.rules.model import Visit

PASSED = frozenset({"", "JUMP", "GOTO"})
"""What a rule does that only leads on: the path tells of it."""


def acted(visits: Sequence[Visit]) -> list[Visit]:
    """Those that did more than lead on."""
    return [v for v in visits if v.verdict not in PASSED]


def words(visit: Visit) -> str:
    """The rule's text, or what it does if iptables-save told none; of a policy, what it says."""
    if not visit.rule:
        return f"policy {visit.verdict}"
    return visit.rule.text or f"{visit.rule.target or 'counts'} (its text could not be read)"
