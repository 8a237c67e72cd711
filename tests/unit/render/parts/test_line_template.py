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
    template = LineTemplate(text.format(*marks), {marks[0]: "port", marks[1]: "names[0]"}, ("port", "names"))
    assert template.fill(80, ["eth0"]) == text.format(80, "eth0")


@pytest.mark.parametrize("text", ["{{port}}", "'", '"', "\\", "\\n\\0", "{{text_0}}", "ü 😀"])
def test_texts_are_no_part_of_the_program(text: str) -> None:
    mark = new_mark()
    assert LineTemplate(f"{text} {mark} {text}", {mark: "port"}, ("port",)).fill(80) == f"{text} 80 {text}"


def test_a_mark_inside_a_longer_number_is_no_place() -> None:
    mark = new_mark()
    assert LineTemplate(f"7{mark} {mark}", {mark: "port"}, ("port",)).fill(1) == f"7{mark} 1"


def test_marks_differ() -> None:
    assert len({new_mark() for _ in range(1000)}) == 1000
