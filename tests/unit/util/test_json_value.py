# SPDX-License-Identifier: Apache-2.0
"""Checks of JSON values: each gives a value of its type, or an error that names what was there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tracer.util import json_value
from tracer.util.json_value import Json, UnexpectedJson


@pytest.mark.parametrize(
    ("check", "value", "result"),
    [
        (json_value.as_object, {"a": 1}, {"a": 1}),
        (json_value.as_list, [1], [1]),
        (json_value.as_text, "a", "a"),
        (json_value.as_text, 1, "1"),
        (json_value.as_number, 5, 5),
        (json_value.as_number, "-100", -100),
        (json_value.as_number, 2.5, 2),
        (json_value.as_pair, [1, "a"], (1, "a")),
        (json_value.only_member, {"a": [1]}, ("a", [1])),
    ],
)
def test_a_value_of_the_expected_form(check: Callable[[Json], object], value: Json, result: object) -> None:
    assert check(value) == result


@pytest.mark.parametrize(
    ("check", "value", "fault"),
    [
        (json_value.as_object, [], "a list in place of an object"),
        (json_value.as_object, None, "null in place of an object"),
        (json_value.as_list, {}, "an object in place of a list"),
        (json_value.as_text, [], "a list in place of a string"),
        (json_value.as_number, "first", "a string in place of a number"),
        (json_value.as_number, float("inf"), "a number that is not finite in place of a number"),
        (json_value.as_pair, [1], "a list of 1 in place of a pair"),
        (json_value.as_pair, "ab", "a string in place of a list"),
        (json_value.only_member, {"a": 1, "b": 2}, "an object of 2 members in place of one"),
        (json_value.only_member, 5, "a number in place of an object"),
    ],
)
def test_a_value_of_another_form_is_an_error(check: Callable[[Json], object], value: Json, fault: str) -> None:
    with pytest.raises(UnexpectedJson, match=f"^{fault}$"):
        check(value)


def test_a_member() -> None:
    assert json_value.member({"a": None}, "a") is None
    with pytest.raises(UnexpectedJson, match=r"^an object without b$"):
        json_value.member({"a": 1}, "b")
    with pytest.raises(UnexpectedJson, match=r"^a string in place of an object$"):
        json_value.member("abc", "a")
