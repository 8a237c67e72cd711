# SPDX-License-Identifier: Apache-2.0
"""Bounds of the kept nftables snapshots: the number of rules and map elements in all namespaces together."""

from __future__ import annotations

import os

import pytest

from tests.support.waiting import until
from tracer.model.rule import Rule, Ruleset
from tracer.rules.nftables import namespace_snapshots
from tracer.rules.nftables import snapshot as nftables_snapshot
from tracer.rules.nftables import watcher as nftables_watcher
from tracer.rules.nftables.namespace_snapshots import NamespaceTable, SnapshotHistory
from tracer.rules.nftables.snapshot import Snapshot
from tracer.rules.nftables.verdict_maps import MapElement, VerdictMap
from tracer.rules.nftables.watcher import RulesetWatcher
from tracer.util.worker import user_warnings

RULE = Rule("inet", "huge", "c", 1, "counter")


def snapshot(number: int, rules: int) -> Snapshot:
    """A snapshot of generation `number` with that many rules."""
    by_handle = {(1, handle): RULE for handle in range(rules)}
    return Snapshot(Ruleset("nft", 1, str(number), {}), number, by_handle, {})


class Namespace:
    """An entry of the table."""

    gone = False

    def __init__(self, stays: bool) -> None:
        self.stays, self.snapshots = stays, SnapshotHistory()


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> NamespaceTable[Namespace]:
    """At most 100 objects; namespace 1 is never evicted."""
    monkeypatch.setattr(namespace_snapshots, "OBJECTS_KEPT", 100)
    return NamespaceTable(lambda space: Namespace(stays=space == 1))


def add(table: NamespaceTable[Namespace], space: int, number: int, rules: int) -> list[int]:
    table[space].snapshots.add(snapshot(number, rules))
    return table.limit_objects(space)


def test_a_map_counts_once_however_many_rules_use_it() -> None:
    used = VerdictMap(7, 4, tuple(MapElement(bytes([n]), "drop") for n in range(5)))
    found = Snapshot(Ruleset("nft", 1, "1", {}), 1, {(1, 1): RULE, (1, 2): RULE}, {}, {(1, 1): (used, 0), (1, 2): (used, 0)})
    assert found.objects == 7


def test_the_largest_history_loses_its_oldest_generations(table: NamespaceTable[Namespace]) -> None:
    for number in range(3):
        assert add(table, 1, number, 10) == []
    for number in range(4):
        assert add(table, 2, number, 30) == []
    assert list(table[1].snapshots) == [0, 1, 2]
    assert (list(table[2].snapshots), table[2].snapshots.evicted) == ([2, 3], 2)


def test_a_namespace_that_is_too_large_beside_the_polled_one_loses_its_rules(table: NamespaceTable[Namespace]) -> None:
    add(table, 1, 1, 80)
    assert add(table, 2, 1, 15) == []
    assert add(table, 3, 1, 10) == [2]
    assert add(table, 4, 1, 30) == [3, 4]
    assert [list(table[space].snapshots) for space in (1, 2, 3, 4)] == [[1], [], [], []]


def test_the_newest_rules_of_the_polled_namespace_stay_although_they_are_too_many(table: NamespaceTable[Namespace]) -> None:
    add(table, 1, 1, 150)
    assert add(table, 1, 2, 150) == []
    assert list(table[1].snapshots) == [2]


def test_the_user_reads_that_rules_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace_snapshots, "OBJECTS_KEPT", 100)
    monkeypatch.setattr(
        nftables_snapshot, "read_new", lambda fd, space, known, prints: (1, None if 1 in known else snapshot(1, 80))
    )
    monkeypatch.setattr(nftables_watcher._Namespace, "_open", lambda self: os.open(os.devnull, os.O_RDONLY))
    monkeypatch.setattr(user_warnings, "_keys", set())
    user_warnings.read()
    warnings: list[str] = []
    with RulesetWatcher(pause=0.01) as watch:
        watch.poll(1, 5)
        watch.is_coming(2, 1)

        def is_warned() -> bool:
            warnings.extend(user_warnings.read())
            return bool(warnings)

        until(is_warned)
        assert watch.find(1, 1) and not watch.find(2, 1)
    assert warnings == [
        "The nftables rules of network namespace 2 are read again when they are needed: more than 600000 rules and map elements"
        " are not kept."
    ]
