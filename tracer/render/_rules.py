"""Words for the rules that acted, shared by the formats."""

from __future__ import annotations

from collections.abc import Sequence

from tracer.rules.model import Place, Rule, Visit

PASSED = frozenset({"", "JUMP", "GOTO"})
"""What a rule does that only leads on: the path tells of it."""


def path(places: Sequence[Place]) -> str:
    """PREROUTING 1 > KUBE-SERVICES 2 > KUBE-SEP-X 1; a policy has no number: FORWARD policy."""
    return " > ".join(f"{p.chain} {p.number or 'policy'}" for p in places)


def acted(visits: Sequence[Visit]) -> list[Visit]:
    """Those that did more than lead on."""
    return [v for v in visits if v.verdict not in PASSED]


def words(rule: Rule) -> str:
    """The rule's text, or what it does if iptables-save told none."""
    return rule.text or f"{rule.target or 'counts'} (its text could not be read)"
