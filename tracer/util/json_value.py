# SPDX-License-Identifier: Apache-2.0
"""JSON values with types, and the checks that a reader of JSON makes before it uses a part of one."""

from __future__ import annotations

from contextlib import suppress
from math import isfinite
from typing import TypeAlias

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
"""What `json.loads` returns."""
JsonObject: TypeAlias = dict[str, Json]


class UnexpectedJson(ValueError):
    """A JSON value does not have the form that its reader expects."""


def as_object(value: Json) -> JsonObject:
    """The value, if it is an object. Raises UnexpectedJson."""
    if not isinstance(value, dict):
        raise UnexpectedJson(f"{_kind(value)} in place of an object")
    return value


def as_list(value: Json) -> list[Json]:
    """The value, if it is a list. Raises UnexpectedJson."""
    if not isinstance(value, list):
        raise UnexpectedJson(f"{_kind(value)} in place of a list")
    return value


def one_or_more(value: Json) -> list[Json]:
    """The values of a list, or the only value where no list is written for one."""
    return value if isinstance(value, list) else [value]


def as_text(value: Json) -> str:
    """The value as text; a number, a truth value or null as Python writes it. Raises UnexpectedJson."""
    if isinstance(value, dict | list):
        raise UnexpectedJson(f"{_kind(value)} in place of a string")
    return str(value)


def as_number(value: Json) -> int:
    """The value as an integer; a string of digits is accepted, a fraction is cut. Raises UnexpectedJson."""
    with suppress(ValueError, OverflowError):
        if isinstance(value, int | float | str):
            return int(value)
    raise UnexpectedJson(f"{_kind(value)} in place of a number")


def as_pair(value: Json) -> tuple[Json, Json]:
    """The two values of a list of two. Raises UnexpectedJson."""
    both = as_list(value)
    if len(both) != 2:
        raise UnexpectedJson(f"a list of {len(both)} in place of a pair")
    return both[0], both[1]


def member(value: Json, name: str) -> Json:
    """The member of this name of an object. Raises UnexpectedJson."""
    found = as_object(value)
    if name not in found:
        raise UnexpectedJson(f"an object without {name}")
    return found[name]


def only_member(value: Json) -> tuple[str, Json]:
    """Name and value of the only member of an object. Raises UnexpectedJson."""
    found = as_object(value)
    if len(found) != 1:
        raise UnexpectedJson(f"an object of {len(found)} members in place of one")
    return next(iter(found.items()))


def _kind(value: Json) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, float) and not isfinite(value):
        return "a number that is not finite"
    return "null" if value is None else "a number"
