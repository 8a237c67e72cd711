# SPDX-License-Identifier: Apache-2.0
"""Table traces and table generations: two further records of the ring buffer (bpf/records/table_trace.h)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from tracer.events import cstruct, record
from tracer.events.record import EventArray, Kind
from tracer.util.octets import c_text

STEPS, RULESET = (
    cstruct.dtype("records/table_trace.h", "table_trace"),
    cstruct.dtype("records/table_trace.h", "table_generation"),
)
WATCHED, REPLACED, STATUS_CHANGED = (
    cstruct.define("records/table_trace.h", f"STEPS_{name}") for name in ("WATCHED", "REPLACED", "STATUS_CHANGED")
)
RECORDS = cstruct.define("records/table_trace.h", "STEPS_RECORDS")
"""Mask of the number of table trace records, in `state` of a TABLE event."""
SHAPE_AT, SHAPE_MASK = cstruct.define("records/table_trace.h", "STEPS_SHAPE"), 7


@cstruct.enumeration("records/table_trace.h", "header_shape")
class Shape(IntEnum):
    """How much of the transport header a packet has, in `state` of a TABLE event."""

    SHAPE_WHOLE = 0
    SHAPE_NO_OPTIONS = 1
    SHAPE_NO_HEADER = 2
    SHAPE_NO_PORTS = 3
    SHAPE_OFFSET_8 = 4
    SHAPE_BROKEN = 5
    SHAPE_UNKNOWN = 6
    SHAPE_ELSEWHERE = 7


@dataclass(frozen=True)
class TableTrace:
    """One record of a run of an iptables table.

    Attributes:
        mark: Packet mark when the table began.
        count: Number of steps of the whole run.
        first: Number of the first step in this record.
        jumps: Offsets of the jump rules in the rule blob, bytes.
        steps: (offset in the rule blob in bytes, result); result: 0 false, 1 true, 2 unknown, 3 target.
        hotdrop: Number, from 1, of the step in which a match dropped the packet; 0 = no hotdrop, None = not known.
    """

    mark: int
    count: int
    first: int
    jumps: tuple[int, ...]
    steps: tuple[tuple[int, int], ...]
    hotdrop: int | None = None


@dataclass(frozen=True)
class TableLookup:
    """A thread looked up a table.

    Attributes:
        time: ns, CLOCK_MONOTONIC.
        thread: Thread id.
        netns: Inode of the namespace.
        family: "ip" or "ip6".
        table: Name of the table.
        object: Address of the rule blob in force.
    """

    time: int
    thread: int
    netns: int
    family: str
    table: str
    object: int


@dataclass(frozen=True)
class TableReplaced:
    """A thread replaced the rules of a table.

    Attributes:
        time: ns, CLOCK_MONOTONIC.
        thread: Thread id.
        before: Address of the old rule blob.
        object: Address of the new rule blob.
        table: Name of the table.
    """

    time: int
    thread: int
    before: int
    object: int
    table: str = field(default="", compare=False)


def split(batch: EventArray) -> tuple[EventArray, EventArray, EventArray]:
    """Splits a batch into events, table traces and table generations, each in the order of writing."""
    steps, rulesets = record.of_kinds(batch, Kind.EVENT_STEPS), record.of_kinds(batch, Kind.EVENT_RULESET)
    if not steps.any() and not rulesets.any():
        return batch, np.empty(0, STEPS), np.empty(0, RULESET)
    rest = record.chosen(batch, rulesets).view(np.uint8).reshape(-1, batch.itemsize)[:, : RULESET.itemsize]
    events, traces = record.chosen(batch, ~(steps | rulesets)), record.chosen(batch, steps)
    return events, traces.view(STEPS), rest.copy().view(RULESET).ravel()


def table_traces(rows: EventArray) -> dict[int, list[TableTrace]]:
    """The table traces of one packet by the time of their TABLE event, ns, CLOCK_MONOTONIC.

    Copies of a flooded packet have its identity and hop number, and use the same buffer in turn; the time distinguishes them.
    """
    found: dict[int, list[TableTrace]] = {}
    for row in rows:
        count, first = int(row["count"]), int(row["first"])
        room = (row["steps_1"], row["steps_2"], row["steps_3"])
        kept = np.concatenate(room)[: max(0, count - first)].tolist()
        steps = tuple((s >> 2 << 3, s & 3) for s in kept)
        jumps = tuple(j << 3 for j in row["jumps"].tolist())
        hotdrop = int(row["hotdrop"]) - 1 if row["hotdrop"] else None
        found.setdefault(int(row["time"]), []).append(TableTrace(int(row["mark"]), count, first, jumps, steps, hotdrop))
    return found


def without_values(rows: EventArray) -> EventArray:
    """A copy of table traces without the times, the packets and the room behind the last step: equal for equal runs."""
    alike = rows.copy()
    alike["time"] = alike["packet"] = 0
    left, before = alike["count"].astype(np.int64) - alike["first"], 0
    for room in ("steps_1", "steps_2", "steps_3"):
        places = np.arange(before, before + alike[room].shape[1])
        alike[room][places >= left[:, None]] = 0
        before += alike[room].shape[1]
    return alike


def changes(rows: EventArray) -> Iterator[TableLookup | TableReplaced]:
    """Yields the lookup or replacement of each table generation record; only IPv4 and IPv6."""
    for row in rows:
        time, thread, now = int(row["time"]), int(row["thread"]), int(row["object"])
        if row["before"]:
            yield TableReplaced(time, thread, int(row["before"]), now, c_text(row["table"]))
        elif int(row["pf"]) in (2, 10):
            family = "ip" if row["pf"] == 2 else "ip6"
            yield TableLookup(time, thread, int(row["netns"]), family, c_text(row["table"]), now)


assert STEPS.itemsize == record.DTYPE.itemsize
assert RULESET.itemsize == record.SLOT - 8
