# SPDX-License-Identifier: Apache-2.0
"""Mappings and lists that make a value on first access: of a node's 80,000 rules a packet meets a few dozen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")


class Lazy(Mapping[K, V]):
    """A mapping with the given keys, in their order; `make` makes each value once."""

    def __init__(self, keys: Collection[K], make: Callable[[K], V]) -> None:
        self._keys, self._make = keys, make
        self._made: dict[K, V] = {}

    def __getitem__(self, key: K) -> V:
        found = self._made.get(key)
        if found is None:
            if key not in self._keys:
                raise KeyError(key)
            found = self._made[key] = self._make(key)
        return found

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def forget(self) -> None:
        """Empties the mapping and releases the keys and values."""
        self._keys, self._made = (), {}


class Overlay(Mapping[K, V]):
    """A mapping in which some values are replaced by others. It has the keys of `known`, in their order."""

    def __init__(self, known: Mapping[K, V], replaced: Mapping[K, V]) -> None:
        self._known, self._replaced = known, replaced

    def __getitem__(self, key: K) -> V:
        return self._replaced[key] if key in self._replaced else self._known[key]

    def __contains__(self, key: object) -> bool:
        return key in self._known

    def __iter__(self) -> Iterator[K]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class LazyList(Sequence[V]):
    """A sequence of the given length; `make` makes each value once, from its index."""

    def __init__(self, length: int, make: Callable[[int], V]) -> None:
        self._made: list[V | None] = [None] * length
        self._make = make

    @overload
    def __getitem__(self, at: int) -> V: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[V, ...]: ...
    def __getitem__(self, at: int | slice) -> V | tuple[V, ...]:
        if isinstance(at, slice):
            return tuple(self[n] for n in range(*at.indices(len(self))))
        at = range(len(self._made))[at]  # from the end, and IndexError
        found = self._made[at]
        if found is None:
            found = self._made[at] = self._make(at)
        return found

    def __len__(self) -> int:
        return len(self._made)
