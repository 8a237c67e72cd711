"""Mappings whose values are made when they are first asked for: of a node's 80,000 rules a packet meets a few dozen."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Lazy(Mapping[K, V]):
    """For each of `keys`, in their order, what `make` gives for it; made once."""

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
