# SPDX-License-Identifier: Apache-2.0
"""Changes of a JSON value that keep it JSON: wrong types, huge numbers, unusual texts, moved nodes."""

from __future__ import annotations

import json
import random
from typing import Any

HUGE = (
    1 << 31,
    1 << 32,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    1 << 64,
    1 << 200,
    10**400,
    -1,
    -(1 << 31),
    -(1 << 63),
    -(1 << 64),
    -(10**400),
)
FLOATS = (0.0, -0.0, 0.5, 1e18, 1e308, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "", " ", "x", "\0", "\n", "é", "\ud800", "\x1b[31m", "\u202e", "ip", "ip6", "nat", "true", "0", "-1",
    "99999999999999999999",
    "10.0.0.1", "::1", "fe80::1%eth0", "10.0.0.0/8", "999.1.1.1", "tcp", "None", "AAAA", "/dev/zero", "../../etc/passwd",
    "x" * 5000,
)  # fmt: skip
SHAPES: tuple[Any, ...] = (
    None, True, False, [], {}, [[]], [{}], {"": None}, [None], [1, 2, 3], {"tuple": []}, {"tuple": [1, 2]}, {"dict": []},
    {"dict": [[{"dict": []}, 1]]}, {"dict": [[[], 1]]}, {"dict": [1]}, {"set": [[]]}, {"set": [1]}, {"bytes": "AAAA"},
    {"bytes": "!"}, {"bytes": 1}, {"Loss": {}}, {"Fact": {}}, {"Fact": {"subject": 1, "state": [], "text": None}},
    {"Sandbox": {"container": [], "network": {}, "namespace": 1, "name": None}}, {"HostPort": {"port": "x"}},
    {"Loss": {"probe": [], "cpu": {}, "count": "x", "why": 1}}, {"Wanted": {"netns": [], "family": 1, "table": {}}},
)  # fmt: skip
DEEP = {"@list@": (b"[", b"]"), "@dict@": (b'{"x":', b"}"), "@tuple@": (b'{"tuple":[', b"]}")}
"""Placeholders for nested values: Python's json module cannot write very deep ones."""


def copied(value: Any) -> Any:
    return json.loads(json.dumps(value))


def text(value: Any, dice: random.Random) -> bytes:
    """A value as JSON."""
    made = json.dumps(value, separators=(",", ":")).encode("utf-8", "surrogatepass")
    for mark, (begin, end) in DEEP.items():
        if mark.encode() in made:
            times = dice.choice((20, 100, 500, 3000))
            made = made.replace(f'"{mark}"'.encode(), begin * times + b"1" + end * times)
    return made


def hostile(dice: random.Random) -> Any:
    """A value that no reader expects."""
    way = dice.random()
    if way < 0.3:
        return copied(dice.choice(SHAPES))
    if way < 0.5:
        return dice.choice(HUGE)
    if way < 0.6:
        return dice.choice(FLOATS)
    if way < 0.85:
        return dice.choice(TEXTS)
    if way < 0.95:
        return dice.randrange(-2, 300)
    return dice.choice(list(DEEP))


def places(value: Any, most: int = 4000) -> list[tuple[Any, Any]]:
    """(container, key) of every node below a value."""
    found: list[tuple[Any, Any]] = []
    todo = [value]
    while todo and len(found) < most:
        one = todo.pop()
        inside = list(one.items()) if isinstance(one, dict) else list(enumerate(one)) if isinstance(one, list) else []
        for key, each in inside:
            found.append((one, key))
            todo.append(each)
    return found


def changed(value: Any, dice: random.Random, times: int = 1) -> Any:
    """A copy with some nodes replaced, removed, doubled or moved."""
    whole = [copied(value)]
    for _ in range(times):
        nodes = places(whole)
        container, key = dice.choice(nodes)
        way = dice.random()
        if way < 0.6:
            container[key] = hostile(dice)
        elif way < 0.7:
            if container is not whole:
                del container[key]
        elif way < 0.8:
            other, place = dice.choice(nodes)
            container[key] = copied(other[place])
        elif way < 0.85:
            container[key] = [container[key]]
        elif way < 0.9 and isinstance(container, list):
            container.insert(key, copied(container[key]))
        elif way < 0.95 and isinstance(container, dict):
            container[dice.choice(TEXTS)] = container.pop(key)
        elif isinstance(container[key], int) and not isinstance(container[key], bool):
            container[key] += dice.choice((-1, 1, 1 << 20, -(1 << 20)))
        else:
            container[key] = str(container[key])[:1000] if not isinstance(container[key], list | dict) else hostile(dice)
    return whole[0]
