"""Rulesets in a capture: what is read back explains as what was read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests import captures
from tracer.capture import rulesets
from tracer.capture.codec import Unreadable
from tracer.rules.model import Rule, Ruleset
from tracer.rules.nft import Snapshot
from tracer.rules.nft_maps import Element, VerdictMap
from tracer.rules.nft_watch import Change


def again(told: Any) -> Any:
    return json.loads(json.dumps(told))


def test_a_legacy_reading() -> None:
    made = captures.reading(100, 200)
    assert rulesets.reading(again(rulesets.of_reading(made))) == replace(made, blob=b"", text=None)


def test_a_reading_that_failed() -> None:
    made = replace(captures.reading(1, 2), table=None, rules={}, blob=b"", why="the network namespace is gone")
    assert rulesets.reading(again(rulesets.of_reading(made))) == made


def snapshot() -> Snapshot:
    rules = [Rule("ip", "nat", "pre", n, f"rule {n}", "why", "DNAT", 10 + n) for n in (1, 2)]
    chains = {("ip", "nat", "pre"): tuple(rules), ("ip", "nat", "empty"): (), ("ip", "filter", "in"): ()}
    policies = {("ip", "nat", "pre"): "ACCEPT"}
    found = VerdictMap(13, 2, (Element(b"\x1f\x90", "goto X"),))
    return Snapshot(
        Ruleset("nft", 100, "7", chains, policies), 7, {(3, 11): rules[0], (3, 12): rules[1]}, {(3, 1): "pre"},
        {(3, 11): (found, 4), (3, 12): (found, 8)},
    )  # fmt: skip


@pytest.mark.parametrize("change", [Change(100, 7, False, snapshot()), Change(100, 8), Change(100, 8, True)])
def test_an_nftables_reading(change: Change) -> None:
    assert rulesets.change(again(rulesets.of_change(change))) == change


@pytest.mark.parametrize(
    "told", [None, {}, [1], {"wanted": [1, "ip", "nat"], "table": {"blob": "AAAA"}}, [1, 2, False, {"chains": 3}]]
)
def test_damage(told: Any) -> None:
    with pytest.raises(Unreadable):
        rulesets.reading(told)
    with pytest.raises(Unreadable):
        rulesets.change(told)
