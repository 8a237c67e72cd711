# SPDX-License-Identifier: Apache-2.0
"""Periods in which nodes lost packets."""

from __future__ import annotations

import random

from tracer.joining.loss_periods import NODES_KEPT, PERIODS_KEPT, LossPeriods
from tracer.util.evictions import evictions


def test_a_period_concerns_what_it_overlaps() -> None:
    periods = LossPeriods()
    assert not periods
    periods.add("a", 10, 20)
    assert periods
    found = [periods.concerns("a", *period) for period in ((0, 9), (0, 10), (12, 13), (20, 30), (21, 30), (0, 99))]
    assert found == [False, True, True, True, False, True]
    assert not periods.concerns("b", 0, 99)


def test_periods_that_touch_become_one() -> None:
    chosen = random.Random(3)
    for _ in range(50):
        periods, lost = LossPeriods(), set[int]()
        for _ in range(20):
            since = chosen.randrange(100)
            until = since + chosen.randrange(10)
            periods.add("a", since, until)
            lost.update(range(since, until + 1))
        for since in range(110):
            until = since + chosen.randrange(4)
            assert periods.concerns("a", since, until) == bool(lost.intersection(range(since, until + 1)))


def test_old_periods_are_forgotten() -> None:
    periods = LossPeriods()
    periods.add("a", 10, 20)
    periods.add("a", 30, 40)
    periods.forget(25)
    assert not periods.concerns("a", 0, 25)
    assert periods.concerns("a", 0, 30)
    periods.forget(41)
    assert not periods


def test_more_periods_than_are_kept_become_longer_and_never_vanish() -> None:
    periods = LossPeriods()
    for n in range(2 * PERIODS_KEPT):
        periods.add("a", 10 * n, 10 * n + 1)
    assert all(periods.concerns("a", 10 * n, 10 * n) for n in range(2 * PERIODS_KEPT))
    assert sum(not periods.concerns("a", 10 * n + 5, 10 * n + 5) for n in range(2 * PERIODS_KEPT)) <= PERIODS_KEPT


def test_nodes_are_bounded() -> None:
    evictions.read()
    periods = LossPeriods()
    for n in range(NODES_KEPT + 3):
        periods.add(f"node-{n}", 0, 1)
    assert evictions.read() == {"nodes with losses": 3}
