# SPDX-License-Identifier: Apache-2.0
"""Values that are made when they are read."""

from __future__ import annotations

import pytest

from tracer.util.lazy import Lazy, LazyList


def test_a_value_is_made_once_and_only_when_it_is_read() -> None:
    made = []

    def double(n: int) -> int:
        made.append(n)
        return 2 * n

    lazy = Lazy(range(1, 1000), double)
    assert (len(lazy), 7 in lazy, 1000 in lazy, made) == (999, True, False, [])
    assert (lazy[7], lazy[7], lazy.get(3), lazy.get(0)) == (14, 14, 6, None)
    assert made == [7, 3]
    with pytest.raises(KeyError):
        lazy[1000]


def test_a_lazy_mapping_behaves_as_any_mapping() -> None:
    lazy = Lazy({"b": 0, "a": 0}, str.upper)
    assert list(lazy) == ["b", "a"]
    assert list(lazy.values()) == ["B", "A"]
    assert {**lazy} == {"a": "A", "b": "B"} == lazy


def test_a_lazy_list() -> None:
    made = []

    def square(n: int) -> int:
        made.append(n)
        return n * n

    squares = LazyList(10, square)
    assert (len(squares), squares[3], squares[-1], squares[3], squares[7:]) == (10, 9, 81, 9, (49, 64, 81))
    assert made == [3, 9, 7, 8]
    assert list(squares)[:4] == [0, 1, 4, 9] and 64 in squares
    with pytest.raises(IndexError):
        squares[10]
