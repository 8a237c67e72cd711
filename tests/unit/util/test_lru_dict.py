# SPDX-License-Identifier: Apache-2.0
"""Bounded dictionaries: everything kept during a whole run has a limit, counts evicted entries, and still answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.builders import event
from tests.support.waiting import PATIENCE
from tracer.capture.format.codec import pack
from tracer.capture.format.schema import Record
from tracer.capture.record import buffer as record_buffer
from tracer.capture.record import carry_over
from tracer.capture.record.buffer import Chunk, RecordBuffer
from tracer.capture.record.carry_over import CarryOver
from tracer.events import record
from tracer.events.nft_trace import HIT_DTYPE
from tracer.events.record import DTYPE, Kind
from tracer.findings import context
from tracer.findings.context import FindingContext
from tracer.model.rule import Ruleset
from tracer.node import namespaces
from tracer.node import processes as node_processes
from tracer.node.namespaces import Namespaces
from tracer.node.processes import Processes
from tracer.protocol.limits import MOST_TEMPLATE_BYTES
from tracer.protocol.templates import TemplateStore
from tracer.rules import rule_resolver
from tracer.rules.nftables import namespace_snapshots, watcher
from tracer.rules.nftables import snapshot as nftables_snapshot
from tracer.rules.nftables.snapshot import Snapshot
from tracer.rules.nftables.snapshot_cache import SnapshotCache
from tracer.rules.nftables.watcher import RulesetUpdate, RulesetWatcher
from tracer.rules.rule_resolver import RuleResolver
from tracer.util.lru_dict import LruCounter, LruDict


def test_the_longest_unused_entry_is_evicted_first_and_counted() -> None:
    kept: LruDict[str, int] = LruDict(2)
    kept["a"], kept["b"] = 1, 2
    assert kept["a"] == 1
    kept["c"] = 3
    assert (list(kept), kept.evicted, kept.get("b"), "b" in kept, len(kept)) == (["a", "c"], 1, None, False, 2)
    del kept["a"]
    kept.update(d=4, e=5)
    assert (dict(kept), kept.evicted) == ({"d": 4, "e": 5}, 2)


def test_an_entry_is_kept_while_half_as_many_others_are_added_since_its_last_use() -> None:
    """A look-up in a dictionary that is less than half full does not change the order: it would cost as much as the look-up."""
    for used_at in range(1, 9):
        kept: LruDict[int, str] = LruDict(8)
        for key in range(9 if used_at < 4 else used_at + 7):
            kept[key] = str(key)
            if key + 1 == used_at:
                assert kept.get(0) == "0" and kept[0] == "0"
        assert (0 in kept) == (used_at >= 4), used_at
    full: LruDict[int, None] = LruDict(8)
    for key in range(9):
        full[key] = None
        assert full.get(0, "missing") is None
    assert 0 in full and 1 not in full


def test_an_exact_order_counts_each_use() -> None:
    kept: LruDict[str, int] = LruDict(100, is_exact=True)
    kept["a"], kept["b"], kept["c"] = 1, 2, 3
    assert (kept.get("a"), kept["b"]) == (1, 2)
    kept.evict()
    assert list(kept) == ["a", "b"]


def test_the_template_of_a_stream_that_was_used_longest_ago_is_dropped_for_its_bytes() -> None:
    """Both ends of a stream drop the same ones, whatever version they are."""
    store: TemplateStore[int, str] = TemplateStore()
    for key in (1, 2):
        store.put(key, "template", MOST_TEMPLATE_BYTES // 2)
    assert store.get(1) == "template"
    store.put(3, "template", MOST_TEMPLATE_BYTES // 2)
    assert (store.get(1), store.get(2), store.get(3)) == ("template", None, "template")


def test_what_is_evicted_can_be_seen() -> None:
    seen: list[tuple[str, int]] = []
    kept: LruDict[str, int] = LruDict(1, "numbers", lambda key, value: seen.append((key, value)))
    kept["a"] = 1
    kept["a"] = 2
    kept["b"] = 3
    assert (seen, kept.oldest, kept.evicted) == ([("a", 2)], ("b", 3), 1)
    kept.clear()
    assert (kept.oldest, kept.evicted) == (None, 1)


def test_removed_entries_are_not_evicted() -> None:
    entries: LruDict[int, str] = LruDict(2, "things")
    entries[1] = "one"
    assert entries.pop(1, None) == "one" and entries.pop(1, None) is None and entries.pop(1, "none") == "none"
    with pytest.raises(KeyError):
        entries.pop(1)
    assert not entries and entries.evicted == 0


def test_counts() -> None:
    counts: LruCounter[str] = LruCounter(2)
    for key in "aabac":
        counts[key] += 1
    assert (counts["a"], counts["b"], counts["c"], counts["never"], counts.evicted) == (3, 0, 1, 0, 1)


def test_owners_of_sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An evicted owner is looked up again."""
    links = {f"/proc/7/fd/{n}": f"socket:[{1000 + n}]" for n in range(50)}
    monkeypatch.setattr(node_processes, "OWNERS_KEPT", 10)
    monkeypatch.setattr(node_processes, "_processes", lambda: iter([7]))
    monkeypatch.setattr(node_processes, "_command", lambda pid: "server")
    monkeypatch.setattr("tracer.node.processes.os.listdir", lambda path: [p.rpartition("/")[2] for p in links])
    monkeypatch.setattr("tracer.node.processes.os.readlink", lambda path: links[path])
    processes = Processes(pause=-1)
    for inode in [*range(1000, 1050), *range(1000, 1050)]:
        assert processes.owner(inode) == (7, "server"), inode
        assert len(processes._owners) <= 10
    assert processes._owners.evicted > 10


def test_sockets_without_an_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that was looked up in vain is not looked up again during the pause, unless it was evicted meanwhile."""
    readings: list[int] = []
    monkeypatch.setattr(node_processes, "MISSED_KEPT", 10)
    monkeypatch.setattr(node_processes, "_processes", lambda: iter([7]))
    monkeypatch.setattr(Processes, "_read", lambda self, pid, inode: readings.append(inode))
    processes = Processes(pause=1000.0)
    for inode in [*range(1000, 1050), *range(1040, 1050)]:
        processes._read_at = float("-inf")
        assert processes.owner(inode) == (0, "")
        assert len(processes._missed) <= 10
    assert (processes._missed.evicted, readings) == (40, list(range(1000, 1050)))


def test_names_of_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "NAMES_KEPT", 10)
    monkeypatch.setattr(Namespaces, "_read_processes", lambda self: None)
    spaces = Namespaces()
    spaces.node = 1
    for inode in range(2, 100):
        assert spaces.name(inode) == f"netns {inode}"
    assert len(spaces._unknown) == 10 and spaces.name(1) == "node"


def test_answers_of_a_record_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evicted answer is written once more: a replay has it in both cases."""
    monkeypatch.setattr(record_buffer, "ANSWERS_KEPT", 2)
    chunks: list[Chunk] = []
    buffer = RecordBuffer()
    buffer.start(chunks.append)
    for inode in (1, 2, 2, 3, 1):
        buffer.journal(("process", inode), lambda: (7, "server"), (0, ""))
    buffer.flush()
    assert [body[0]["tuple"][1] for chunk in chunks for _, _, _, body in chunk.records] == [1, 2, 3, 1]
    assert buffer._answers.evicted == 2


def test_records_carried_over_into_the_next_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry_over, "MAX_ANSWERS", 3)
    monkeypatch.setattr(carry_over, "MAX_TABLES", 2)
    carried = CarryOver()
    for turn in range(10):
        carried.feed((turn, Record.ANSWER, f"process {turn}", pack([])))
        carried.feed((turn, Record.READING, f"{turn} ip nat", pack([])))
    kept: list[Any] = carried.records()
    assert [r[2] for r in kept if r[1] == Record.ANSWER] == ["process 7", "process 8", "process 9"]
    assert [r[2] for r in kept if r[1] == Record.READING] == ["8 ip nat", "9 ip nat"]


def test_counts_of_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "COUNTS_KEPT", 3)
    found = FindingContext()
    for port in range(10):
        found.counts["asked", port] += 1
        found.since["syn", port] = port
    assert (len(found.counts), found.counts.evicted, len(found.since)) == (3, 7, 3)


def test_namespaces_of_nftables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The namespace that is used all the time stays."""
    monkeypatch.setattr(namespace_snapshots, "NAMESPACES_KEPT", 3)
    monkeypatch.setattr(nftables_snapshot, "read_new", lambda *_: (1, None))
    with RulesetWatcher(pause=0.01) as watch:
        watch.poll(1, 0)
        for inode in range(2, 12):
            watch.near(inode)
        assert len(watch._namespaces) == 3 and 1 in watch._namespaces and watch._namespaces.evicted == 8


def snapshot(number: int) -> Snapshot:
    return Snapshot(Ruleset("nft", 1, str(number), {}), number, {}, {})


def test_generations_of_nftables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest generations stay, in their order of arrival."""
    monkeypatch.setattr(namespace_snapshots, "GENERATIONS_KEPT", 3)
    kept = namespace_snapshots.SnapshotHistory()
    for number in range(10):
        kept.add(snapshot(number))
    assert (list(kept), kept.evicted) == ([7, 8, 9], 7)


def test_unread_changes_of_nftables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "CHANGES_KEPT", 2)
    watch = RulesetWatcher(pause=0.01)
    watch.close()
    for inode in range(2, 12):
        watch._refresh(watch._space(inode))  # there is no such namespace
    assert [c.inode for c in watch.changes()] == [10, 11] and watch._changes.evicted == 8


class Known:
    """A thread that has read every generation of every namespace once."""

    def __init__(self) -> None:
        self.updates: list[RulesetUpdate] = []

    def changes(self) -> list[RulesetUpdate]:
        updates, self.updates = self.updates, []
        return updates

    def is_coming(self, space: int, generation: int) -> bool:
        return False


def test_snapshots_that_a_run_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's own namespace stays; a namespace that is gone is evicted first."""
    monkeypatch.setattr(namespace_snapshots, "NAMESPACES_KEPT", 3)
    known = Known()
    view = SnapshotCache(known)
    known.updates = [RulesetUpdate(inode, 1, inode == 3, snapshot(1)) for inode in (1, 2, 3, 4)]
    view.refresh()
    assert [inode for inode in (1, 2, 3, 4) if inode in view._namespaces] == [1, 2, 4]
    known.updates = [RulesetUpdate(inode, 1, False, snapshot(1)) for inode in range(5, 10)]
    view.refresh()
    assert [inode for inode in range(1, 10) if inode in view._namespaces] == [1, 8, 9]
    assert len(view._namespaces) == 3 and view._namespaces.evicted == 6


def test_evicted_rules_are_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading thread still has the rules, and does not read them again."""
    monkeypatch.setattr(nftables_snapshot, "read_new", lambda _, space, known, prints: (1, None if 1 in known else snapshot(1)))
    own = Path("/proc/self/ns/net").stat().st_ino
    with RulesetWatcher(pause=0.01) as watch:
        watch.poll(own, PATIENCE)
        view = SnapshotCache(watch)
        assert watch.changes() and view.is_coming(own, 1)
        view.refresh()
        assert view.find(own, 1) and not view.is_coming(own, 1)


def test_translations_of_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """For evicted connections the rule that translates them is not known any more."""
    monkeypatch.setattr(rule_resolver, "CONNECTIONS_KEPT", 3)
    resolver = RuleResolver(nft=SnapshotCache(Known()))
    for port in range(10):
        rewrite = record.event(event("NAT", orig_sport=port, ct_info=rule_resolver.NEW)[0])
        resolver.begin_packet([rewrite], True)
        resolver.resolve(rewrite)
    assert (len(resolver._connections), resolver._connections.evicted) == (3, 7)


def test_prefetched_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording asks for the generations that packets met; the number of those that never arrive is limited."""
    monkeypatch.setattr(rule_resolver, "GENERATIONS_KEPT", 3)
    view = SnapshotCache(Known())
    resolver = RuleResolver(nft=view)
    for number in range(10):
        rows = np.zeros(1, HIT_DTYPE)
        rows["kind"], rows["netns"], rows["generation"] = Kind.EVENT_NFT_RULE, 1000 + number, 1
        resolver.prefetch(rows.view(DTYPE))
    assert (len(resolver._generations_met), resolver._generations_met.evicted) == (3, 7)
