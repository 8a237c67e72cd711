# SPDX-License-Identifier: Apache-2.0
"""Each increment is counted once, in one series; the most frequent label sets have a series of their own."""

from __future__ import annotations

import random

from tracer.metrics.family import Tally
from tracer.metrics.label_sets import CANDIDATES_KEPT, TAKES_OVER, LabelSets
from tracer.util.evictions import evictions

OTHER = ("other",)


def counts(sets: LabelSets[Tally]) -> dict[str, int]:
    return {labels[0]: tally.count for labels, tally in sets.items()}


def add(sets: LabelSets[Tally], name: str, count: int = 1) -> None:
    for _ in range(count):
        sets.value((name,)).count += 1


def test_without_room_a_label_set_is_counted_in_other() -> None:
    sets = LabelSets(1, 2, Tally)
    for name in "abcab":
        add(sets, name)
    assert counts(sets) == {"a": 2, "b": 2, "other": 1}


def test_other_is_absent_until_it_is_needed() -> None:
    sets = LabelSets(1, 2, Tally)
    add(sets, "a")
    assert counts(sets) == {"a": 1}


def test_a_more_frequent_label_set_takes_a_place_and_begins_with_zero() -> None:
    evictions.read()
    sets = LabelSets(1, 2, Tally)
    add(sets, "a", 9)
    add(sets, "b", 2)
    add(sets, "c", 5)
    sets.end_period()
    assert counts(sets) == {"a": 9, "c": 0, "other": 5}, "what was counted in other stays there, b is not added to it"
    assert sets.evicted == 1 and evictions.read() == {"label sets of a metric": 1}
    add(sets, "c")
    add(sets, "b")
    assert counts(sets) == {"a": 9, "c": 1, "other": 6}


def test_label_sets_of_the_same_size_do_not_replace_each_other() -> None:
    sets = LabelSets(1, 1, Tally)
    for _ in range(5):
        add(sets, "a", 10)
        add(sets, "b", TAKES_OVER * 10)
        sets.end_period()
    assert sets.evicted == 0 and counts(sets) == {"a": 50, "other": 5 * TAKES_OVER * 10}


def test_an_idle_series_is_replaced_by_any_candidate() -> None:
    sets = LabelSets(1, 1, Tally)
    add(sets, "a", 100)
    sets.end_period()
    add(sets, "b")
    sets.end_period()
    assert counts(sets) == {"b": 0, "other": 1}


def test_many_rare_label_sets_do_not_replace_a_frequent_one() -> None:
    """An attacker who makes new names all the time gets no place."""
    sets = LabelSets(1, 3, Tally)
    for period in range(4):
        for name in ("a", "b", "c"):
            add(sets, name, 10)
        for number in range(2 * CANDIDATES_KEPT):
            add(sets, f"{period}-{number}")
        sets.end_period()
    assert sets.evicted == 0 and {"a", "b", "c", "other"} == set(counts(sets))


def test_no_series_decreases_and_the_sum_of_increases_is_exact() -> None:
    """Like Prometheus: between two readings, a series that is new, or smaller than before, began with 0."""
    chance = random.Random(1)
    sets, before, increases, added = LabelSets(1, 5, Tally), dict[str, int](), 0, 0
    for step in range(5000):
        name = str(int(chance.expovariate(0.2)) + step // 1000)
        add(sets, name)
        added += 1
        if step % 500 == 499:
            sets.end_period()
        now = counts(sets)
        for key, value in now.items():
            earlier = before.get(key, 0)
            assert value >= earlier or key not in before
            increases += value - earlier
        before = now
    assert increases == added and sets.evicted > 0


def test_an_object_with_the_name_other_is_counted_there() -> None:
    sets = LabelSets(1, 1, Tally)
    add(sets, "other")
    add(sets, "a")
    add(sets, "b")
    assert [labels for labels, _ in sets.items()] == [("a",), OTHER] and counts(sets)["other"] == 2


def test_the_number_of_series_and_candidates_is_limited() -> None:
    sets = LabelSets(1, 7, Tally)
    for number in range(3 * CANDIDATES_KEPT):
        add(sets, str(number))
    assert len(list(sets.items())) == 8 and len(sets._candidates) == CANDIDATES_KEPT
