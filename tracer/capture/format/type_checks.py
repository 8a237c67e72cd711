# SPDX-License-Identifier: Apache-2.0
"""Whether a value is of a type: what stands in a file may be of any, and whoever uses it relies on its own."""

from __future__ import annotations

import math
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

LEAST, MOST = -(1 << 63), (1 << 64) - 1
"""Of numbers: what the kernel and SQLite have fits into 64 bits."""


def fits(value: Any, hint: Any, listed: bool = False) -> bool:
    """Whether a value is of this type, with all that is in it. Numbers have 64 bits and are finite.

    hint: as in an annotation; or a dictionary, for a dictionary that has these keys of these types, and may have more. listed:
    plain JSON is looked at, in which tuples are lists.
    """
    if hint is Any:
        return True
    if isinstance(hint, dict):
        return isinstance(value, dict) and all(k in value and fits(value[k], h, listed) for k, h in hint.items())
    if hint is int:
        return type(value) is int and LEAST <= value <= MOST
    if hint is float:
        return type(value) in (int, float) and (math.isfinite(value) if type(value) is float else LEAST <= value <= MOST)
    if hint is None or hint is NoneType:
        return value is None
    if isinstance(hint, TypeVar):
        return True
    origin, inside = get_origin(hint), get_args(hint)
    if origin is UnionType or str(origin) == "typing.Union":
        return any(fits(value, one, listed) for one in inside)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inside)
    if origin is dict:
        return type(value) is dict and all(fits(k, inside[0], listed) and fits(v, inside[1], listed) for k, v in value.items())
    if origin is tuple:
        return type(value) is (list if listed else tuple) and _tuple(value, inside, listed)
    if origin in (list, frozenset):
        return type(value) is origin and all(fits(v, inside[0], listed) for v in value)
    # The fields of a data class were looked at when it was made.
    return type(value) is hint


def _tuple(value: Any, inside: tuple[Any, ...], listed: bool) -> bool:
    if len(inside) == 2 and inside[1] is Ellipsis:
        return all(fits(v, inside[0], listed) for v in value)
    return len(value) == len(inside) and all(fits(v, h, listed) for v, h in zip(value, inside, strict=True))


_HINTS: dict[type, dict[str, Any]] = {}
"""Of each data class that may stand in a file (tracer/capture/format/codec.py): of no others."""


def sound(value: Any) -> bool:
    """Whether the fields of a data class have their types."""
    kind = type(value)
    hints = _HINTS[kind] = _HINTS.get(kind) or get_type_hints(kind)
    return all(fits(getattr(value, f.name), hints[f.name]) for f in fields(value))


def hashable(value: Any, depth: int = 4) -> bool:
    """Whether a value can be a question: texts and numbers, in tuples."""
    if type(value) is tuple:
        return bool(depth) and all(hashable(v, depth - 1) for v in value)
    return value is None or isinstance(value, str) or fits(value, int) or type(value) is bool
