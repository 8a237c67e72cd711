# SPDX-License-Identifier: Apache-2.0
"""Rulesets in a capture: a ruleset that was stored and read back is equal."""

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


def stored(encoded: Any) -> Any:
    return json.loads(json.dumps(encoded))


def test_a_legacy_reading() -> None:
    made = captures.reading(100, 200)
    assert rulesets.decode_reading(stored(rulesets.encode_reading(made))) == replace(made, blob=b"", text=None)


def test_a_reading_that_failed() -> None:
    made = replace(captures.reading(1, 2), table=None, rules={}, blob=b"", why="the network namespace is gone")
    assert rulesets.decode_reading(stored(rulesets.encode_reading(made))) == made


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
    assert rulesets.decode_update(stored(rulesets.encode_update(change))) == change


def test_an_nftables_reading_of_an_older_capture() -> None:
    """It has no tables by handle, no time of the reading, no element timeouts, and no hotdrop matches."""
    encoded = stored(rulesets.encode_update(RulesetUpdate(100, 7, False, snapshot())))
    del encoded[3]["tables"], encoded[3]["taken"], encoded[3]["throwing"]
    text = json.dumps(encoded)
    older = json.loads(text.replace(', "times_out": true', "").replace(', "flags": 16, "parts": {"tuple": [2]}', ""))
    read = rulesets.decode_update(older).snapshot
    assert read and (read.tables, read.taken, read.hotdrop_matches) == ({}, 0, {})
    (verdicts, _) = read.lookups[3, 11]
    assert (verdicts.flags, verdicts.parts, verdicts.elements[0].times_out) == (0, (), False)


@pytest.mark.parametrize(
    "encoded", [None, {}, [1], {"wanted": [1, "ip", "nat"], "table": {"blob": "AAAA"}}, [1, 2, False, {"chains": 3}]]
)
def test_damaged_rulesets_are_refused(encoded: Any) -> None:
    with pytest.raises(MalformedRecord):
        rulesets.decode_reading(encoded)
    with pytest.raises(MalformedRecord):
        rulesets.decode_update(encoded)


@pytest.mark.parametrize(
    ("key", "value"),
    [("taken", "soon"), ("tables", [[1, 5]]), ("tables", 7), ("throwing", [[1, 2, [5]]]), ("throwing", [["1", 2, []]])],
)
def test_fields_of_newer_captures_have_their_types(key: str, value: object) -> None:
    body = rulesets.encode_update(RulesetUpdate(100, 7, False, snapshot()))
    encoded = stored(body)
    assert record_checks.record(Record.NFT, encoded) == encoded
    del encoded[3][key]
    assert record_checks.record(Record.NFT, encoded) == encoded, "older captures do not have this field"
    encoded[3][key] = value
    with pytest.raises(MalformedRecord):
        record_checks.record(Record.NFT, encoded)
