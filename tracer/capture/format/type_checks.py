# SPDX-License-Identifier: Apache-2.0
"""Checks the type of a value. Values in a file may have any type, and the code that uses them needs the right one."""

from __future__ import annotations

import math
from dataclasses import fields
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

MIN_NUMBER, MAX_NUMBER = -(1 << 63), (1 << 64) - 1
"""Range of numbers: the numbers of the kernel and of SQLite have 64 bits."""


def fits(value: Any, hint: Any, is_json: bool = False) -> bool:
    """Whether a value, with all its elements, has this type. Numbers must have 64 bits and be finite.

    Args:
        value: the value.
        hint: a type as in an annotation; or a dictionary, which describes a dictionary with at least these keys.
        is_json: the value is plain JSON, in which tuples are lists.
    """
    if hint is Any:
        return True
    if isinstance(hint, dict):
        return isinstance(value, dict) and all(k in value and fits(value[k], h, is_json) for k, h in hint.items())
    if hint is int:
        return type(value) is int and MIN_NUMBER <= value <= MAX_NUMBER
    if hint is float:
        if type(value) is float:
            return math.isfinite(value)
        return type(value) is int and MIN_NUMBER <= value <= MAX_NUMBER
    if hint is None or hint is NoneType:
        return value is None
    if isinstance(hint, TypeVar):
        return True
    origin, inside = _parts(hint)
    if origin in (UnionType, Union):
        return any(fits(value, one, is_json) for one in inside)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inside)
    if origin is dict:
        of_key, of_value = inside
        return type(value) is dict and all(fits(k, of_key, is_json) and fits(v, of_value, is_json) for k, v in value.items())
    if origin is tuple:
        return type(value) is (list if is_json else tuple) and _tuple(value, inside, is_json)
    if origin in (list, frozenset):
        return type(value) is origin and all(fits(v, inside[0], is_json) for v in value)
    # The fields of a data class were checked when it was created.
    return type(value) is hint


@lru_cache(1024)
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """The unsubscripted type, and what is in its brackets."""
    return get_origin(hint), get_args(hint)


def _tuple(value: Any, inside: tuple[Any, ...], is_json: bool) -> bool:
    if len(inside) == 2 and inside[1] is Ellipsis:
        return all(fits(v, inside[0], is_json) for v in value)
    return len(value) == len(inside) and all(fits(v, h, is_json) for v, h in zip(value, inside, strict=True))


_HINTS: dict[type, dict[str, Any]] = {}
"""Types of the fields of each data class that a file may contain (tracer/capture/format/codec.py)."""


def has_valid_fields(value: Any) -> bool:
    """Whether the fields of a data class have their types."""
    kind = type(value)
    hints = _HINTS[kind] = _HINTS.get(kind) or get_type_hints(kind)
    return all(fits(getattr(value, f.name), hints[f.name]) for f in fields(value))


def hashable(value: Any, depth: int = 4) -> bool:
    """Whether a value can be a question: strings and numbers, nested in tuples."""
    if type(value) is tuple:
        return bool(depth) and all(hashable(v, depth - 1) for v in value)
    return value is None or isinstance(value, str) or fits(value, int) or type(value) is bool
