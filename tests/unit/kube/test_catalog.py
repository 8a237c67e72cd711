# SPDX-License-Identifier: Apache-2.0
"""The cache of owners has a limit, and never gives one ruleset the owners of another."""

from __future__ import annotations

import pytest

from tracer.kube import catalog
from tracer.kube.catalog import OwnerCache
from tracer.model.kube import Owner
from tracer.model.rule import Rule, Ruleset

OWNER = Owner("Service", "shop", "cart")


def ruleset(number: int) -> Ruleset:
    return Ruleset("legacy", number, str(number), {})


def rule(number: int) -> Rule:
    return Rule("ip", "nat", "A", number, "-j ACCEPT")


def test_owners_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "MOST_REMEMBERED", 10)
    cache, rules = OwnerCache(), ruleset(1)
    for n in range(100):
        assert cache.get(rule(n), rules, 1) is None
        cache.put(rule(n), rules, OWNER)
        assert len(cache._owners) <= 10 and cache.get(rule(n), rules, 1) == OWNER
    assert cache.get(rule(1), rules, 1) is None


def test_rule_traces_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "MOST_WALKS", 10)
    cache, rules = OwnerCache(), ruleset(1)
    for n in range(100):
        hits = [n]
        cache.put_trace(hits, rules, "", n)
        assert len(cache._traces) <= 10 and cache.get_trace(hits, rules, "", -1) == n


def test_rulesets_are_bounded() -> None:
    """A namespace that comes and goes has a ruleset each time."""
    cache, kept = OwnerCache(), []
    for n in range(1000):
        hits, rules = [n], ruleset(n)
        kept.append(rules)
        cache.put_trace(hits, rules, "", n)
        assert len(cache._rulesets) <= catalog.MOST_RULESETS + 1
        assert cache.get_trace(hits, rules, "", -1) == n
