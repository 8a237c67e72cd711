# SPDX-License-Identifier: Apache-2.0
"""The sizes of all containers that an object leads to, to find those that grow."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

CONTAINERS = (dict, list, set, frozenset, deque, tuple)


def sizes(*roots: object) -> dict[str, int]:
    """The largest size by path, such as "Run._assembler._closed._entries"; `[]` stands for the elements of a container."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    waiting: list[tuple[str, Any]] = [(type(root).__name__, root) for root in roots]
    while waiting:
        path, one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, CONTAINERS):
            found[path] = max(found.get(path, 0), len(one))
        waiting += _parts(path, one)
    return found


def _parts(path: str, one: object) -> Iterator[tuple[str, Any]]:
    if isinstance(one, Mapping) and isinstance(one, dict):
        yield from ((f"{path}[]", part) for pair in list(one.items()) for part in pair)
    elif isinstance(one, CONTAINERS) and isinstance(one, Collection):
        yield from ((f"{path}[]", part) for part in list(one))
    elif isinstance(one, FunctionType):
        yield from ((f"{path}()", cell.cell_contents) for cell in one.__closure__ or ())
    elif isinstance(one, MethodType):
        yield f"{path}()", one.__self__
    if type(one).__module__.startswith(("tracer", "tests")):
        names = {*getattr(one, "__dict__", {}), *(name for t in type(one).__mro__ for name in getattr(t, "__slots__", ()))}
        yield from ((f"{path}.{name}", getattr(one, name, None)) for name in names)
