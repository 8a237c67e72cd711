# SPDX-License-Identifier: Apache-2.0
"""The comparison of the kernel's trace with the tracer's: only runs at the edges of a round may be missing."""

from __future__ import annotations

import pytest

from tests.kernel.truth.edges import Places, by_hook, may_be

FIRST: Places = [("OUTPUT", 1)]
THEN: Places = [("OUTPUT", 2), ("OUTPUT", 0)]
INSIDE, OUTSIDE = True, False


@pytest.mark.parametrize(
    ("runs", "possible"),
    [
        ([], [[]]),
        ([(FIRST, INSIDE), (THEN, INSIDE)], [FIRST + THEN]),
        ([(FIRST, OUTSIDE), (THEN, INSIDE)], [THEN, FIRST + THEN]),
        ([(FIRST, INSIDE), (THEN, OUTSIDE)], [FIRST, FIRST + THEN]),
        ([(FIRST, OUTSIDE), (THEN, INSIDE), (FIRST, OUTSIDE)], [THEN, FIRST + THEN, THEN + FIRST, FIRST + THEN + FIRST]),
        ([(FIRST, OUTSIDE)], [[], FIRST]),
        ([(FIRST, OUTSIDE), (THEN, OUTSIDE)], [[], FIRST, THEN, FIRST + THEN]),
    ],
)
def test_only_runs_at_the_edges_may_be_missing(runs: list[tuple[Places, bool]], possible: list[Places]) -> None:
    assert {tuple(p) for p in may_be(runs)} == {tuple(p) for p in possible}


def test_a_copys_places_follow_its_originals() -> None:
    nested: Places = [("FORWARD", 1), ("POSTROUTING", 2), ("A1", 4), ("FORWARD", 2), ("A2", 1), ("FORWARD", 0)]
    whole: Places = [("POSTROUTING", 2), ("A1", 4), ("FORWARD", 1), ("FORWARD", 2), ("A2", 1), ("FORWARD", 0)]
    assert by_hook(nested) == by_hook(whole) == [*whole[2:], *whole[:2]]
    assert by_hook(nested[:-1]) != by_hook(whole)
