# SPDX-License-Identifier: Apache-2.0
"""A packet that may still get events: its rows as they came, decoded when they are needed."""

from __future__ import annotations

from tracer.events import decision_detail, record
from tracer.events.detail_row import read_row
from tracer.events.nft_trace import HIT_DTYPE
from tracer.events.packet_groups import joined_rows
from tracer.events.record import DTYPE, Event, EventArray, EventRow, Kind
from tracer.model.hop import DecisionDetail

assert HIT_DTYPE.fields
_FIRST = HIT_DTYPE.fields["registers"][1]
_REGISTERS = slice(_FIRST, _FIRST + HIT_DTYPE["registers"].itemsize)
"""Bytes of a rule hit that are nftables' registers."""


class OpenPacket:
    """The rows of one packet in the order in which they arrived.

    Args:
        rows: Its first rows, a copy of its own.
        is_settled: See below.

    Attributes:
        began: Time of the row that arrived first, ns, CLOCK_MONOTONIC.
        last: Time of the row that arrived last, ns, CLOCK_MONOTONIC.
        is_settled: No rules that acted on the packet are still to be read.
    """

    __slots__ = ("_events", "_octets", "_rows", "began", "is_settled", "last")

    def __init__(self, rows: EventArray, is_settled: bool = False) -> None:
        self._rows, self.is_settled = [rows], is_settled
        times = rows["time"]
        self.began, self.last = times.item(0), times.item(-1)
        self._events: list[EventRow] = []
        self._octets = b""

    def __len__(self) -> int:
        return sum(map(len, self._rows))

    def add(self, rows: EventArray, is_settled: bool = False) -> None:
        """Adds rows that came later. is_settled: no rules that acted at these rows are still to be read."""
        self._rows.append(rows)
        self._octets = b""
        self.last = rows["time"].item(-1)
        self.is_settled = self.is_settled and is_settled

    @property
    def rows(self) -> EventArray:
        """All rows."""
        if len(self._rows) > 1:
            self._rows = [joined_rows(self._rows)]
        return self._rows[0]

    def octets(self, at: int) -> bytes:
        """The bytes of the row at a place in `rows`."""
        if not self._octets:
            self._octets = self.rows.tobytes()
        return self._octets[at * DTYPE.itemsize : (at + 1) * DTYPE.itemsize]

    def registers(self, at: int) -> bytes:
        """nftables' registers in the rule hit at a place in `rows`."""
        return self.octets(at)[_REGISTERS]

    def detail(self, at: int) -> DecisionDetail:
        """The decision detail at a place in `rows`."""
        return decision_detail.of_row(read_row(self.octets(at)))

    @property
    def has_event(self) -> bool:
        """Whether there is a row that makes a hop on its own: not only rule hits and decision details."""
        return any(isinstance(e, Event) and e.kind != Kind.EVENT_CLUE for e in self.events)

    @property
    def events(self) -> list[EventRow]:
        """All rows as named tuples."""
        if len(self._events) < len(self):
            self._events = list(record.events(self.rows))
        return self._events
