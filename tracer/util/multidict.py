# SPDX-License-Identifier: Apache-2.0
"""A multi-valued index for values from several objects."""

from __future__ import annotations

import atexit
import gc
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class MultiIndex(Generic[K, V]):
    """Distinct values by key. A value that several objects have added stays until each of them has removed it."""

    def __init__(self) -> None:
        self._values: dict[K, tuple[V, ...]] = {}
        self._duplicates: dict[tuple[K, V], int] = {}

    def all(self, key: K) -> tuple[V, ...]:
        return self._values.get(key, ())

    def one(self, key: K) -> V | None:
        """The only value of the key; None = no value, or more than one."""
        found = self._values.get(key, ())
        return found[0] if len(found) == 1 else None

    def add(self, key: K, value: V) -> None:
        found = self._values.get(key)
        if found is None:
            self._values[key] = (value,)
        elif value not in found:
            self._values[key] = (*found, value)
        else:
            self._duplicates[key, value] = self._duplicates.get((key, value), 0) + 1

    def remove(self, key: K, value: V) -> None:
        again = self._duplicates.pop((key, value), 0)
        if again > 1:
            self._duplicates[key, value] = again - 1
        if again:
            return
        left = tuple(v for v in self._values.get(key, ()) if v != value)
        if left:
            self._values[key] = left
        else:
            self._values.pop(key, None)

    def clear(self) -> None:
        """Removes all values. New dictionaries take the place of the old ones, which another thread may be reading."""
        self._values, self._duplicates = {}, {}

    def values(self) -> list[V]:
        """All values, once for each of their keys."""
        return [value for found in list(self._values.values()) for value in found]

    def __len__(self) -> int:
        return len(self._values)


# Frozen objects are collected at exit: otherwise DuckDB reports that its own classes still exist.
atexit.register(gc.unfreeze)


@contextmanager
def no_cycles() -> Iterator[None]:
    """Turns the garbage collector off for a block that makes thousands of objects without cycles, then freezes them."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was:
            gc.enable()
