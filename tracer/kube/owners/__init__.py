# SPDX-License-Identifier: Apache-2.0
"""Finds the owner of a rule. Each file of this package is for one program that writes rules, and is found by its file name.

A file has `owner(rule, ruleset, cluster)`: the owner of a rule of its program, None for any other rule. Two files must not
claim the same rule (a test checks all of them). It may have `MARKS`: chain that tests a mark -> chain that sets it.

The file of a program that carries out NetworkPolicies has `denial_of` (what a rule that denies packets shows of policies) and
`accepts` (whether a rule of a policy sets the mark of an accepted packet), and may have `POLICY_MARKS` (mark of an accepted
packet -> mark that a policy sets).

Must not know: packets, other writers of rules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import ModuleType

from tracer.kube.catalog import ClusterView
from tracer.kube.rule_text import BASE, is_hidden
from tracer.model.kube import UNKNOWN, Owner
from tracer.model.policy import POLICY_KINDS, PolicyDenial
from tracer.model.rule import Rule, Ruleset
from tracer.util.registry import Registry

Finder = Callable[[Rule, Ruleset, ClusterView], Owner | None]

ADMINISTRATOR = Owner("administrator", evidence="no program known here writes such a rule")


_OWNERS: Registry[Finder] = Registry(__name__, "owner", helpers=("by_name",))


@cache
def finders() -> tuple[tuple[str, Finder], ...]:
    """Returns (file name, function) of all known programs."""
    return _OWNERS.entries()


@cache
def _modules() -> tuple[ModuleType, ...]:
    """Returns the files of all known programs. The package is searched once: packets ask for them."""
    return _OWNERS.modules()


@cache
def marks() -> dict[str, str]:
    """Returns chain that tests a mark -> chain that sets it, of all programs."""
    joined: dict[str, str] = {}
    for module in _modules():
        joined |= getattr(module, "MARKS", {})
    return joined


def denial_of(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> PolicyDenial | None:
    """Returns what a rule that denies packets shows of NetworkPolicies; None for any other rule."""
    for module in _modules():
        found: PolicyDenial | None = module.denial_of(rule, ruleset, cluster) if hasattr(module, "denial_of") else None
        if found:
            return found
    return None


def policy_mark(rule: Rule, ruleset: Ruleset, owner: Owner, bits: int) -> int:
    """Returns the mark bits with which a rule of a policy accepts packets; 0 = the rule accepts none.

    Args:
        rule: The rule.
        ruleset: Its ruleset.
        owner: Its owner.
        bits: The mark bits that it sets.
    """
    if owner.kind not in POLICY_KINDS:
        return 0
    module = next((m for m in _modules() if getattr(m, "PROGRAM", "") == owner.program and hasattr(m, "accepts")), None)
    return bits if module and module.accepts(rule, ruleset) else 0


def policy_marks() -> dict[tuple[str, int], int]:
    """Returns (program, mark of an accepted packet) -> mark that its policies set, where the two differ."""
    found: dict[tuple[str, int], int] = {}
    for module in _modules():
        found |= {(module.PROGRAM, tested): bits for tested, bits in getattr(module, "POLICY_MARKS", {}).items()}
    return found


def owner_of(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner:
    """Returns the owner of a rule.

    A rule of no known program belongs to the administrator. The owner is unknown if the rule's text could not be read
    completely, or if its program does not show for which object it wrote the rule.
    """
    remembered = cluster.cache.get(rule, ruleset, cluster.store.version)
    if remembered:
        return remembered
    found = _find(rule, ruleset, cluster)
    if found.known:
        cluster.cache.put(rule, ruleset, found)
    return found


def _find(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner:
    for _, find in finders():
        found = find(rule, ruleset, cluster)
        if found:
            return found
    return UNKNOWN if rule.chain in BASE and is_hidden(rule) else ADMINISTRATOR
