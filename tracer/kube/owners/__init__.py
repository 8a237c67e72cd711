# SPDX-License-Identifier: Apache-2.0
"""Whose a rule is. Each writer of rules has its file here and is found by it: add a file, and its rules have an owner.

A file has `owner(rule, ruleset, known)`: the owner of a rule that its program wrote, None for any other rule. No two may claim
the same rule (a test goes through all of them). It may have `MARKS`: chain that acts on a mark -> chain that sets it.

Must not know: packets, other writers of rules.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType

from tracer.kube.catalog import ClusterView
from tracer.kube.rule_text import BASE, is_hidden
from tracer.model.kube import UNKNOWN, Owner
from tracer.model.rule import Rule, Ruleset

Finder = Callable[[Rule, Ruleset, ClusterView], Owner | None]

ADMINISTRATOR = Owner("administrator", evidence="no program known here writes such a rule")


@cache
def _modules() -> tuple[ModuleType, ...]:
    names = sorted(m.name for m in pkgutil.iter_modules(__path__))
    found = (import_module(f"{__name__}.{name}") for name in names)
    return tuple(module for module in found if hasattr(module, "owner"))


@cache
def finders() -> tuple[tuple[str, Finder], ...]:
    """Every writer of rules that is known: its file's name and its function."""
    return tuple((module.__name__.rpartition(".")[2], module.owner) for module in _modules())


@cache
def marks() -> dict[str, str]:
    """Chain that acts on a mark -> chain that sets it, of all writers."""
    joined: dict[str, str] = {}
    for module in _modules():
        joined |= getattr(module, "MARKS", {})
    return joined


def owner_of(rule: Rule, ruleset: Ruleset, cluster: ClusterView) -> Owner:
    """Whose rule it is.

    The administrator's are those that nobody known wrote; unknown stays what cannot be told: a rule whose text is hidden from
    whoever read it, or one of a program that does not show for whom it wrote it.
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
