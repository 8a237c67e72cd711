# SPDX-License-Identifier: Apache-2.0
"""Rules are read in the background: once per generation, on request, and old ones are dropped."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.waiting import PATIENCE, until
from tracer.model.rule import Ruleset
from tracer.node import netns, netns_cookie
from tracer.node.nfnetlink import TooManyMessages
from tracer.rules import unprinted_rules
from tracer.rules.nftables import snapshot as nftables_snapshot
from tracer.rules.nftables import watcher
from tracer.rules.nftables.namespace_snapshots import GENERATIONS_KEPT, NAMESPACES_KEPT
from tracer.rules.nftables.snapshot import RulesetChanging, Snapshot
from tracer.rules.nftables.snapshot_cache import SnapshotCache
from tracer.rules.nftables.watcher import RulesetWatcher


class Kernel:
    """The rules of a namespace; each reading is counted."""

    def __init__(self) -> None:
        self.generation, self.readings, self.looks, self.always_changing = 1, 0, 0, False
        self.too_large = self.asked = 0
        self.answers_at_once = self.changes_while_printed = False
        self.printed: list[bool] = []

    def of(self, space: int) -> int:
        self.asked += 1
        return self.generation if self.answers_at_once else 0

    def close(self) -> None:
        """Nothing is open."""

    def read_new(self, fd: int, inode: int, known: Container[int] = (), prints: bool = True) -> tuple[int, Snapshot | None]:
        self.looks += 1
        if self.always_changing:
            raise RulesetChanging
        if self.generation in known:
            return self.generation, None
        self.readings += 1
        if self.generation == self.too_large:
            error = TooManyMessages("there are more than 200000 of them")
            error.generation = self.too_large
            raise error
        self.printed.append(prints)
        is_unprinted = self.changes_while_printed or not prints
        ruleset = Ruleset("nft", inode, str(self.generation), {})
        return self.generation, Snapshot(ruleset, self.generation, {}, {}, is_unprinted=is_unprinted)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    kernel = Kernel()
    monkeypatch.setattr(nftables_snapshot, "read_new", kernel.read_new)
    monkeypatch.setattr(watcher, "OwnGeneration", lambda: kernel)
    return kernel


@pytest.fixture
def watch() -> Iterator[RulesetWatcher]:
    with RulesetWatcher(pause=0.01) as w:
        yield w


OWN = Path("/proc/self/ns/net").stat().st_ino


def test_each_generation_is_read_once(kernel: Kernel, watch: RulesetWatcher) -> None:
    watch.poll(OWN, PATIENCE)
    assert watch.find(OWN, 1) and watch.find(OWN, 2) is None
    kernel.generation = 2
    until(lambda: watch.find(OWN, 2))
    looks = kernel.looks
    until(lambda: kernel.looks > looks + 2)
    assert kernel.readings == 2
    assert [s.number for s in watch.near(OWN)] == [2, 1]


def test_the_own_namespace_is_not_entered_while_its_generation_is_the_same(kernel: Kernel, watch: RulesetWatcher) -> None:
    kernel.answers_at_once = True
    watch.poll(OWN, PATIENCE)
    looks, asked = kernel.looks, kernel.asked
    until(lambda: kernel.asked > asked + 5)
    assert kernel.looks == looks == 1
    kernel.generation = 2
    until(lambda: watch.find(OWN, 2))
    assert kernel.readings == 2


def test_too_many_rules_are_not_read_again_until_they_change(
    kernel: Kernel, watch: RulesetWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counting too many rules takes seconds of processor time."""
    monkeypatch.setattr(watcher, "RETRY_SECONDS", 0.01)
    kernel.too_large = 1
    watch.poll(OWN, PATIENCE)
    looks = kernel.looks
    until(lambda: kernel.looks > looks + 3)
    assert kernel.readings == 1 and not watch.near(OWN) and not watch.is_coming(OWN, 1)
    kernel.generation = 2
    until(lambda: watch.find(OWN, 2))
    assert kernel.readings == 2


def test_other_namespaces_are_read_when_a_hit_needs_them(kernel: Kernel, watch: RulesetWatcher) -> None:
    assert watch.find(OWN, 1) is None
    time.sleep(0.05)
    assert kernel.looks == 0, "no hit needed it"
    assert watch.is_coming(OWN, 1)
    until(lambda: watch.find(OWN, 1))
    assert not watch.is_coming(OWN, 1)
    looks = kernel.looks
    time.sleep(0.05)
    assert kernel.looks == looks


def test_a_generation_that_has_passed_does_not_come(kernel: Kernel, watch: RulesetWatcher) -> None:
    kernel.generation = 5
    assert watch.is_coming(OWN, 4), "the namespace has not been read yet"
    until(lambda: watch.find(OWN, 5))
    assert not watch.is_coming(OWN, 4) and watch.is_coming(OWN, 6)


def test_a_namespace_that_is_gone(kernel: Kernel, watch: RulesetWatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(inode: int) -> Path:
        raise LookupError(inode)

    monkeypatch.setattr(netns, "find", nothing)
    assert watch.is_coming(999, 1)
    until(lambda: not watch.is_coming(999, 1))
    assert kernel.looks == 0


def test_rules_that_change_all_the_time(kernel: Kernel, watch: RulesetWatcher) -> None:
    kernel.always_changing = True
    watch.poll(OWN)
    until(lambda: kernel.looks > 2)
    assert watch.near(OWN) == []
    kernel.always_changing = False
    until(lambda: watch.find(OWN, 1))


def test_old_snapshots_are_dropped(kernel: Kernel, watch: RulesetWatcher) -> None:
    for kernel.generation in range(1, GENERATIONS_KEPT + 4):
        assert watch.is_coming(OWN, kernel.generation)
        until(lambda: watch.find(OWN, kernel.generation))
    until(lambda: len(watch.near(OWN)) == GENERATIONS_KEPT)
    assert watch.near(OWN)[0].number == GENERATIONS_KEPT + 3


def test_the_next_namespace_with_the_same_inode(kernel: Kernel, watch: RulesetWatcher) -> None:
    """The reader treats it as another namespace: it is read, and the rules of the first one are not used for it."""
    watch.poll(OWN, PATIENCE)
    later = netns.identity(OWN, 7)
    assert watch.find(OWN, 1) and watch.find(later, 1) is None and watch.is_coming(later, 1)
    until(lambda: watch.find(later, 1))


def test_a_namespace_is_known_by_its_cookie() -> None:
    here = netns_cookie.cookie()
    if not here:
        pytest.skip("this kernel has no namespace cookies")
    with pytest.raises(LookupError):
        nftables_snapshot.read_here(netns.identity(OWN, here ^ 1), ())


def test_namespaces_that_come_and_go_are_not_remembered_for_ever(kernel: Kernel, watch: RulesetWatcher) -> None:
    """Namespaces that are gone are evicted first; the run's own namespace stays."""
    watch.poll(OWN, PATIENCE)
    missing = range(1 << 31, (1 << 31) + NAMESPACES_KEPT + 20)
    view = SnapshotCache(watch)
    view.refresh()
    for inode in missing:
        watch.is_coming(inode, 1)
        view.find(inode, 1)
    assert (watch._namespaces.evicted, view._namespaces.evicted) == (21, 21)
    assert watch.find(OWN, 1) and view.find(OWN, 1)


def test_a_path_that_leads_to_another_namespace_now() -> None:
    assert netns.find(OWN)
    with pytest.raises(LookupError):
        netns.open_path(Path("/proc/self/ns/net"), OWN + 1)
    with pytest.raises(LookupError):
        netns.find(1)


def test_a_long_reading_in_vain_is_followed_by_a_pause(monkeypatch: pytest.MonkeyPatch, watch: RulesetWatcher) -> None:
    """Rules of 44,000 Services take seconds, and may change meanwhile each time: reading must not use a processor alone."""
    times: list[tuple[float, float]] = []

    def read_new(fd: int, inode: int, known: Container[int] = (), prints: bool = True) -> tuple[int, Snapshot | None]:
        began = time.monotonic()
        time.sleep(0.1)
        times.append((began, time.monotonic()))
        raise RulesetChanging

    monkeypatch.setattr(nftables_snapshot, "read_new", read_new)
    watch.poll(OWN)
    until(lambda: len(times) >= 4)
    pauses = [(after[0] - before[1], before[1] - before[0]) for before, after in pairwise(times[:4])]
    assert all(pause >= 0.9 * took for pause, took in pauses), pauses


def test_rules_that_change_often_are_read_without_the_tools(
    kernel: Kernel, watch: RulesetWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unprinted_rules, "UNPRINTED_TIMES", 10**9)
    kernel.changes_while_printed = True
    watch.poll(OWN, PATIENCE)
    for kernel.generation in (2, 3):
        until(lambda: watch.find(OWN, kernel.generation))
    looks = kernel.looks
    until(lambda: kernel.looks > looks + 3)
    assert kernel.printed == [True, False, False], "and the same rules once"


def test_rules_that_no_longer_change_are_printed(
    kernel: Kernel, watch: RulesetWatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run takes the printed rules in the place of the others."""
    monkeypatch.setattr(unprinted_rules, "UNPRINTED_TIMES", 0)
    kernel.changes_while_printed = True
    watch.poll(OWN, PATIENCE)
    kernel.changes_while_printed = False

    def is_printed() -> bool:
        return any(change.snapshot and not change.snapshot.is_unprinted for change in watch.changes())

    until(is_printed)
    readings, looks = kernel.readings, kernel.looks
    until(lambda: kernel.looks > looks + 3)
    assert kernel.readings == readings and all(kernel.printed)
