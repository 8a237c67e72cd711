# SPDX-License-Identifier: Apache-2.0
"""Fast `dataclasses.replace` for frozen dataclasses, with slots or without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TypeVar, cast

T = TypeVar("T")
_Copy = Callable[[object, dict[str, object]], object]

_COPIES: dict[tuple[type, tuple[str, ...]], _Copy] = {}
"""The function that copies objects of a class with other values in these fields."""


def evolve(value: T, **changed: object) -> T:
    """A copy of a frozen dataclass with other values in some fields, 4x faster than `dataclasses.replace`.

    For objects that are made for every hop or packet. Raises KeyError for an unknown field of a class with slots.
    """
    key = type(value), tuple(changed)
    copy = _COPIES.get(key) or _COPIES.setdefault(key, _copy_function(*key))
    return cast(T, copy(value, changed))


def _copy_function(cls: type, changed: Sequence[str]) -> _Copy:
    return _copy_with_dict if cls.__dictoffset__ else _copy_of_slots(cls, changed)


def _copy_with_dict(value: object, changed: dict[str, object]) -> object:
    other = object.__new__(type(value))
    other.__dict__.update(value.__dict__, **changed)
    return other


def _copy_of_slots(cls: type, changed: Sequence[str]) -> _Copy:
    """A function with a line for each field, as `dataclasses` makes `__init__`: a loop over the fields takes twice as long."""
    names = [field.name for field in fields(cls)]
    if unknown := set(changed).difference(names):
        raise KeyError(unknown.pop())
    lines = [f" set_{name}(other, {f'changed[{name!r}]' if name in changed else f'value.{name}'})" for name in names]
    text = "\n".join(("def copy(value, changed):", " other = new(cls)", *lines, " return other"))
    scope: dict[str, object] = {f"set_{name}": getattr(cls, name).__set__ for name in names}
    scope.update(new=object.__new__, cls=cls)
    exec(text, scope)  # its only variable parts are names of fields
    return cast(_Copy, scope["copy"])
