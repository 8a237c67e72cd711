# SPDX-License-Identifier: Apache-2.0
"""What still holds of the records written so far: a further file of the same run begins with it, and can be read alone."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from tracer.capture.format.codec import pack, unpack
from tracer.capture.format.schema import Record
from tracer.util.bounded import Bounded

Stored = tuple[Any, ...]
"""turn, kind, key, body."""

ANSWERS_KEPT, TABLES_KEPT = 1 << 16, 1 << 12
"""Answers, and tables or namespaces with readings, that a further file begins with; those that came or were changed last."""
FILTERS = 16
"""Renewed filters: packets are matched with those that held when they came."""
READINGS = 16
"""Of a legacy table, and of a namespace's nftables: older ones are of packets long gone."""


class CarryOver:
    """Records by what they are about; the newer takes the place of the older where it says all that the older said."""

    def __init__(self) -> None:
        self._answers: Bounded[str, Stored] = Bounded(ANSWERS_KEPT)
        self._sandboxes: Stored | None = None
        self._readings: Bounded[tuple[str, str], deque[Stored]] = Bounded(TABLES_KEPT)
        self._rulesets: deque[Stored] = deque()
        self._objects: dict[str, dict[str, Any]] = {}
        self._named: Stored | None = None
        self._filters: deque[Stored] = deque(maxlen=FILTERS)

    def feed(self, record: Stored) -> None:
        """A record was written."""
        _, kind, key, body = record
        if kind == Record.ANSWER:
            self._answers[key] = record
        elif kind == Record.SANDBOXES:
            self._sandboxes = record
        elif kind in (Record.READING, Record.NFT):
            about = key if kind == Record.READING else key.partition(" ")[0]
            self._readings.setdefault((kind, about), deque(maxlen=READINGS)).append(record)
        elif kind == Record.RULESET:
            self._rulesets.append(record)
            oldest = min((q[0][0] for (k, _), q in self._readings.items() if k == Record.READING), default=0)
            while self._rulesets and self._rulesets[0][0] < oldest - 1000:
                self._rulesets.popleft()
        elif kind == Record.FILTER:
            self._filters.append(record)
        elif kind == Record.OBJECTS:
            self._apply(record, *unpack(body))

    def _apply(self, record: Stored, what: str, kind: str, bodies: list[Any]) -> None:
        if what == "named":
            self._named = record
            return
        if what == "replace":
            self._objects[kind] = {}
        for body in bodies:
            of, meta = self._objects.setdefault(body["kind"], {}), body.get("metadata") or {}
            name = json.dumps([meta.get("namespace", ""), meta.get("name", "")])
            if what == "delete":
                of.pop(name, None)
            else:
                of[name] = body

    def records(self) -> list[Stored]:
        """All that holds, as records in the order of their turns."""
        found = [*self._answers.values(), *self._filters, *self._rulesets, *(r for q in self._readings.values() for r in q)]
        found += [r for r in (self._sandboxes,) if r]
        found.sort(key=lambda r: int(r[0]))
        everything = [body for of in self._objects.values() for body in of.values()]
        first = [(0, Record.OBJECTS.value, "", pack(["load", "", everything]))] if everything else []
        first += [(0, *r[1:]) for r in (self._named,) if r]
        return first + found
