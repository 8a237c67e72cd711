# SPDX-License-Identifier: Apache-2.0
"""Finds the owner of a rule. Each file of this package is for one program that writes rules, and is found by its file name.

A file has `owner(rule, ruleset, cluster)`: the owner of a rule of its program, None for any other rule. Two files must not
claim the same rule (a test checks all of them). It may have `MARKS`: chain that tests a mark -> chain that sets it.

Must not know: packets, other writers of rules.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tracer.kube.catalog import ClusterView
from tracer.kube.rule_text import BASE, is_hidden
from tracer.model.kube import UNKNOWN, Owner
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
def marks() -> dict[str, str]:
    """Returns chain that tests a mark -> chain that sets it, of all programs."""
    joined: dict[str, str] = {}
    for module in _OWNERS.modules():
        joined |= getattr(module, "MARKS", {})
    return joined


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
