# SPDX-License-Identifier: Apache-2.0
"""A packet that may still get events: its rows as they came, decoded when they are needed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracer.events import record
from tracer.events.record import EventArray, EventRow


class OpenPacket:
    """The rows of one packet in the order in which they arrived.

    Args:
        rows: Its first rows, a copy of its own.
        began: Time of the first row, ns, CLOCK_MONOTONIC.
        last: Time of the last row, ns, CLOCK_MONOTONIC.

    Attributes:
        began: Time of the first row, ns, CLOCK_MONOTONIC.
        last: Time of the row that arrived last, ns, CLOCK_MONOTONIC.
    """

    __slots__ = ("_events", "_rows", "began", "last")

    def __init__(self, rows: EventArray, began: int, last: int) -> None:
        self._rows, self.began, self.last = [rows], began, last
        self._events: list[EventRow] = []

    def __len__(self) -> int:
        return sum(map(len, self._rows))

    def add(self, rows: EventArray, last: int) -> None:
        """Adds rows that came later. last: time of the last one, ns, CLOCK_MONOTONIC."""
        self._rows.append(rows)
        self.last = last

    @property
    def rows(self) -> EventArray:
        """All rows."""
        if len(self._rows) > 1:
            self._rows = [np.concatenate(self._rows)]
        return self._rows[0]

    @property
    def events(self) -> list[EventRow]:
        """All rows as named tuples."""
        if len(self._events) < len(self):
            self._events = list(record.events(self.rows))
        return self._events


def by_packet(events: EventArray) -> Iterator[tuple[int, EventArray, int, int]]:
    """Groups the rows of a batch by packet.

    Yields:
        (identity, its rows, time of the first one, time of the last one); packets in the order of their first row. Times are ns,
        CLOCK_MONOTONIC.
    """
    if not len(events):
        return
    order = np.argsort(events["packet"], kind="stable")
    identities = events["packet"][order]
    starts = np.concatenate(([0], np.flatnonzero(identities[1:] != identities[:-1]) + 1))
    ends = np.append(starts[1:], len(order))
    times = events["time"][order]
    groups = zip(
        order[starts].tolist(), identities[starts].tolist(), starts.tolist(), ends.tolist(), times[starts].tolist(),
        times[ends - 1].tolist(), strict=True,
    )  # fmt: skip
    rows = events[order]
    for _, identity, start, end, began, last in sorted(groups):
        yield identity, rows[start:end].copy(), began, last
