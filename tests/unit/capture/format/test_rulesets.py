# SPDX-License-Identifier: Apache-2.0
"""Rulesets in a capture: what is read back explains as what was read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support import captures
from tracer.capture.format import record_checks, rulesets
from tracer.capture.format.codec import MalformedRecord
from tracer.capture.format.schema import Record
from tracer.model.rule import Rule, Ruleset
from tracer.rules.nftables.snapshot import Snapshot
from tracer.rules.nftables.verdict_maps import MapElement, VerdictMap
from tracer.rules.nftables.watcher import RulesetUpdate


def again(told: Any) -> Any:
    return json.loads(json.dumps(told))


def test_a_legacy_reading() -> None:
    made = captures.reading(100, 200)
    assert rulesets.decode_reading(again(rulesets.encode_reading(made))) == replace(made, blob=b"", text=None)


def test_a_reading_that_failed() -> None:
    made = replace(captures.reading(1, 2), table=None, rules={}, blob=b"", why="the network namespace is gone")
    assert rulesets.decode_reading(again(rulesets.encode_reading(made))) == made


def snapshot() -> Snapshot:
    rules = [Rule("ip", "nat", "pre", n, f"rule {n}", "why", "DNAT", 10 + n) for n in (1, 2)]
    chains = {("ip", "nat", "pre"): tuple(rules), ("ip", "nat", "empty"): (), ("ip", "filter", "in"): ()}
    policies = {("ip", "nat", "pre"): "ACCEPT"}
    found = VerdictMap(13, 2, (MapElement(b"\x1f\x90", "goto X", times_out=True),), 16, (2,))
    return Snapshot(
        Ruleset("nft", 100, "7", chains, policies), 7, {(3, 11): rules[0], (3, 12): rules[1]}, {(3, 1): "pre"},
        {(3, 11): (found, 4), (3, 12): (found, 8)}, {3: "nat", 4: "a" * 60}, 12345,
        {(3, 11): ("multiport", "sctp")},
    )  # fmt: skip


@pytest.mark.parametrize(
    "change", [RulesetUpdate(100, 7, False, snapshot()), RulesetUpdate(100, 8), RulesetUpdate(100, 8, True)]
)
def test_an_nftables_reading(change: RulesetUpdate) -> None:
    assert rulesets.decode_update(again(rulesets.encode_update(change))) == change


def test_an_nftables_reading_of_an_older_capture() -> None:
    """It tells neither tables by handle, nor when the rules were read, what times out, and which matches throw packets away."""
    told = again(rulesets.encode_update(RulesetUpdate(100, 7, False, snapshot())))
    del told[3]["tables"], told[3]["taken"], told[3]["throwing"]
    text = json.dumps(told)
    older = json.loads(text.replace(', "times_out": true', "").replace(', "flags": 16, "parts": {"tuple": [2]}', ""))
    read = rulesets.decode_update(older).snapshot
    assert read and (read.tables, read.taken, read.hotdrop_matches) == ({}, 0, {})
    (verdicts, _) = read.lookups[3, 11]
    assert (verdicts.flags, verdicts.parts, verdicts.elements[0].times_out) == (0, (), False)


@pytest.mark.parametrize(
    "told", [None, {}, [1], {"wanted": [1, "ip", "nat"], "table": {"blob": "AAAA"}}, [1, 2, False, {"chains": 3}]]
)
def test_damage(told: Any) -> None:
    with pytest.raises(MalformedRecord):
        rulesets.decode_reading(told)
    with pytest.raises(MalformedRecord):
        rulesets.decode_update(told)


@pytest.mark.parametrize(
    ("key", "value"),
    [("taken", "soon"), ("tables", [[1, 5]]), ("tables", 7), ("throwing", [[1, 2, [5]]]), ("throwing", [["1", 2, []]])],
)
def test_what_newer_captures_have_has_its_types(key: str, value: object) -> None:
    body = rulesets.encode_update(RulesetUpdate(100, 7, False, snapshot()))
    told = again(body)
    assert record_checks.record(Record.NFT, told) == told
    del told[3][key]
    assert record_checks.record(Record.NFT, told) == told, "older captures have not"
    told[3][key] = value
    with pytest.raises(MalformedRecord):
        record_checks.record(Record.NFT, told)
