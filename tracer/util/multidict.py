# SPDX-License-Identifier: Apache-2.0
"""A dictionary of what several objects say: key -> the values under it, each once."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class MultiIndex(Generic[K, V]):
    """Key -> the values under it, each once, however many objects have put it there."""

    def __init__(self) -> None:
        self._of: dict[K, tuple[V, ...]] = {}
        self._again: dict[tuple[K, V], int] = {}

    def all(self, key: K) -> tuple[V, ...]:
        return self._of.get(key, ())

    def one(self, key: K) -> V | None:
        """The value under the key; None when there is none, or more than one: then it cannot be told which."""
        found = self._of.get(key, ())
        return found[0] if len(found) == 1 else None

    def add(self, key: K, value: V) -> None:
        found = self._of.get(key)
        if found is None:
            self._of[key] = (value,)
        elif value not in found:
            self._of[key] = (*found, value)
        else:
            self._again[key, value] = self._again.get((key, value), 0) + 1

    def remove(self, key: K, value: V) -> None:
        again = self._again.pop((key, value), 0)
        if again > 1:
            self._again[key, value] = again - 1
        if again:
            return
        left = tuple(v for v in self._of.get(key, ()) if v != value)
        if left:
            self._of[key] = left
        else:
            self._of.pop(key, None)

    def values(self) -> list[V]:
        """Every value, once for each key it stands under."""
        return [value for found in list(self._of.values()) for value in found]

    def __len__(self) -> int:
        return len(self._of)


# What was frozen is searched once more at exit: DuckDB complains of its own classes if they are left then.
atexit.register(gc.unfreeze)


@contextmanager
def no_cycles() -> Iterator[None]:
    """Thousands of objects would have Python search them for cycles again and again, and ever after: there are none."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was:
            gc.enable()
