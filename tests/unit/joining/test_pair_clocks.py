# SPDX-License-Identifier: Apache-2.0
"""How far the clocks of two nodes are apart."""

from __future__ import annotations

import random

from tracer.joining.pair_clocks import DRIFT_PPM, PAIRS_KEPT, UNKNOWN_ERROR_NS, ClockRange, PairClocks
from tracer.util.evictions import evictions

SECOND = 1_000_000_000


def test_offsets_to_the_reference_clock() -> None:
    clocks = PairClocks()
    clocks.set_offset("a", 100, 3)
    clocks.set_offset("b", -20, 4)
    assert clocks.difference("a", "b", 0) == ClockRange(113, 127)
    assert clocks.difference("b", "a", 0) == ClockRange(-127, -113)
    assert clocks.difference("a", "a", 0) == ClockRange(0, 0)
    assert clocks.error == 4
    assert clocks.difference("a", "b", 0).is_known


def test_a_clock_that_was_not_compared() -> None:
    clocks = PairClocks()
    clocks.set_offset("a", None, 0)
    assert clocks.difference("a", "b", 0) == ClockRange(-2 * UNKNOWN_ERROR_NS, 2 * UNKNOWN_ERROR_NS)
    assert not clocks.difference("a", "b", 0).is_known


def test_packets_give_a_bound_each_way() -> None:
    clocks = PairClocks()
    clocks.note_order("a", 1000, "b", 5300)
    clocks.note_order("b", 5300, "a", 1500)
    assert clocks.difference("a", "b", 1000) == ClockRange(3800, 4300)
    low, high = clocks.difference("b", "a", 5300)
    assert -4305 <= low <= -4300
    assert -3800 <= high <= -3795
    clocks.note_order("a", 2000, "b", 7000)  # it took longer, and says less
    assert clocks.difference("a", "b", 1000) == ClockRange(3800, 4300)
    clocks.note_order("a", 2000, "b", 6100)
    assert clocks.difference("a", "b", 2000).high == 4100


def test_bounds_grow_with_the_time_since_they_were_found() -> None:
    clocks = PairClocks()
    clocks.note_order("a", 0, "b", 4000)
    clocks.note_order("b", 4000, "a", 1000)  # found at 1000
    grown = SECOND * DRIFT_PPM // 1_000_000
    assert clocks.difference("a", "b", SECOND) == ClockRange(3000 - grown + 1, 4000 + grown)
    assert clocks.difference("a", "b", -SECOND).high == 4000 + grown


def test_a_clock_that_was_changed_gives_new_bounds() -> None:
    clocks = PairClocks()
    clocks.note_order("a", 0, "b", 4000)
    clocks.note_order("b", 1_000_000, "a", 1000)
    assert clocks.contradictions == 1
    assert clocks.difference("a", "b", 0).high > UNKNOWN_ERROR_NS
    clocks.set_offset("a", 0, 5)
    clocks.set_offset("b", 0, 5)
    # What packets say contradicts the pings: the wider statement is kept.
    assert clocks.difference("a", "b", 0) == ClockRange(-10, 10)


def test_the_true_difference_lies_always_within_the_bounds() -> None:
    chosen = random.Random(5)
    for _ in range(30):
        clocks, apart, ppm = PairClocks(), chosen.randrange(-SECOND, SECOND), chosen.uniform(-DRIFT_PPM / 2, DRIFT_PPM / 2)
        time = 0
        for _ in range(200):
            time += chosen.randrange(SECOND)
            other = time + apart + int(time * ppm / 1e6)
            if chosen.random() < 0.5:
                clocks.note_order("a", time, "b", other + chosen.randrange(1_000_000))
            else:
                clocks.note_order("b", other, "a", time + chosen.randrange(1_000_000))
            low, high = clocks.difference("a", "b", time)
            assert low - 1 <= other - time <= high + 1
        assert clocks.contradictions == 0


def test_pairs_are_bounded() -> None:
    evictions.read()
    clocks = PairClocks()
    for n in range(PAIRS_KEPT + 5):
        clocks.note_order("a", 0, f"b{n}", 1)
    assert evictions.read() == {"bounds of pairs of clocks": 5}
    assert not clocks.difference("a", "b0", 0).is_known
