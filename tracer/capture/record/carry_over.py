# SPDX-License-Identifier: Apache-2.0
"""The records written so far that are still valid. Each further file of a run begins with them, so it can be read alone."""

from __future__ import annotations

import json
from typing import Any

from tracer.capture.format.codec import pack, unpack
from tracer.capture.format.schema import Record
from tracer.util.bounded_queue import BoundedQueue
from tracer.util.lru_dict import LruDict

Stored = tuple[Any, ...]
"""Batch number, kind, key, body."""

MAX_ANSWERS, MAX_TABLES = 1 << 16, 1 << 12
"""Maximum number of answers, and of tables or namespaces with readings, that are kept; the newest."""
MAX_FILTERS = 16
"""Maximum number of renewed filters. A packet is matched with the filters that were valid when it arrived."""
MAX_RULESETS = 1 << 14
"""Maximum number of records about replaced tables. Without the look-up of a table, a replay does not use its readings."""
MAX_READINGS = 16
"""Maximum number of readings of a legacy table, and of a namespace's nftables. Older ones belong to packets closed long ago."""


class CarryOver:
    """Valid records by subject. A newer record replaces an older one where it has all of the older one's information."""

    def __init__(self) -> None:
        self._answers: LruDict[str, Stored] = LruDict(MAX_ANSWERS, "answers for the next file")
        self._sandboxes: Stored | None = None
        self._readings: LruDict[tuple[str, str], BoundedQueue[Stored]] = LruDict(MAX_TABLES, "tables for the next file")
        self._rulesets: BoundedQueue[Stored] = BoundedQueue(MAX_RULESETS, "replaced tables for the next file")
        self._objects: dict[str, dict[str, Any]] = {}
        self._node_name: Stored | None = None
        self._filters: BoundedQueue[Stored] = BoundedQueue(MAX_FILTERS, "filters for the next file")

    def feed(self, record: Stored) -> None:
        """Takes a written record."""
        _, kind, key, body = record
        if kind == Record.ANSWER:
            self._answers[key] = record
        elif kind == Record.SANDBOXES:
            self._sandboxes = record
        elif kind in (Record.READING, Record.NFT):
            subject = key if kind == Record.READING else key.partition(" ")[0]
            readings = BoundedQueue[Stored](MAX_READINGS, "readings for the next file")
            self._readings.setdefault((kind, subject), readings).append(record)
        elif kind == Record.RULESET:
            self._rulesets.append(record)
            oldest = min((q[0][0] for (k, _), q in self._readings.items() if k == Record.READING), default=0)
            while self._rulesets and self._rulesets[0][0] < oldest - 1000:
                self._rulesets.popleft()
        elif kind == Record.FILTER:
            self._filters.append(record)
        elif kind == Record.OBJECTS:
            self._apply_objects(record, *unpack(body))

    def _apply_objects(self, record: Stored, what: str, kind: str, bodies: list[Any]) -> None:
        if what == "named":
            self._node_name = record
            return
        if what == "replace":
            self._objects[kind] = {}
        for body in bodies:
            objects, meta = self._objects.setdefault(body["kind"], {}), body.get("metadata") or {}
            name = json.dumps([meta.get("namespace", ""), meta.get("name", "")])
            if what == "delete":
                objects.pop(name, None)
            else:
                objects[name] = body

    def records(self) -> list[Stored]:
        """All valid records, in the order of their batches."""
        found = [*self._answers.values(), *self._filters, *self._rulesets, *(r for q in self._readings.values() for r in q)]
        found += [r for r in (self._sandboxes,) if r]
        found.sort(key=lambda r: int(r[0]))
        everything = [body for of in self._objects.values() for body in of.values()]
        first = [(0, Record.OBJECTS.value, "", pack(["load", "", everything]))] if everything else []
        first += [(0, *r[1:]) for r in (self._node_name,) if r]
        return first + found
