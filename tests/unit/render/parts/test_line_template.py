# SPDX-License-Identifier: Apache-2.0
"""Lines with places for values: any text around them, any number of places."""

from __future__ import annotations

import pytest

from tracer.render.parts.line_template import LineTemplate, new_mark


@pytest.mark.parametrize(
    "text", ["{} -> {}", "{}{{}}%s %d 100% {}", "{0} {0} {1}", "no value", "only {1}", "123456789012345678 {}"]
)
def test_values_are_filled_in(text: str) -> None:
    marks = [new_mark(), new_mark()]
    template = LineTemplate(text.format(*marks), marks)
    assert template.fill((80, "eth0")) == text.format(80, "eth0")


def test_a_mark_inside_a_longer_number_is_no_place() -> None:
    mark = new_mark()
    assert LineTemplate(f"7{mark} {mark}", [mark]).fill([1]) == f"7{mark} 1"


def test_marks_differ() -> None:
    assert len({new_mark() for _ in range(1000)}) == 1000
