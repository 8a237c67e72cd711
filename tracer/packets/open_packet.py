# SPDX-License-Identifier: Apache-2.0
"""A packet that may still get events: its rows as they came, decoded when they are needed."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import numpy as np

from tracer.events import decision_detail, record
from tracer.events.detail_row import read_row
from tracer.events.nft_trace import HIT_DTYPE
from tracer.events.record import DTYPE, Event, EventArray, EventRow, Kind
from tracer.model.hop import DecisionDetail

_SIZE = DTYPE.itemsize
assert HIT_DTYPE.fields
_FIRST = HIT_DTYPE.fields["registers"][1]
_REGISTERS = slice(_FIRST, _FIRST + HIT_DTYPE["registers"].itemsize)
"""Bytes of a rule hit that are nftables' registers."""

assert DTYPE.names and DTYPE.names[0] == "time"


_TIME = struct.Struct("<Q")
"""The time at the begin of a row."""


class OpenPacket:
    """The rows of one packet in the order in which they arrived.

    Args:
        octets: The bytes of its first rows.
        is_settled: See below.

    Attributes:
        began: Time of the row that arrived first, ns, CLOCK_MONOTONIC.
        last: Time of the row that arrived last, ns, CLOCK_MONOTONIC.
        count: Number of rows.
        is_settled: No rules that acted on the packet are still to be read.
    """

    __slots__ = ("_events", "_parts", "began", "count", "is_settled", "last")

    def __init__(self, octets: bytes, is_settled: bool = False) -> None:
        self._parts, self.is_settled = [octets], is_settled
        size = len(octets)
        self.began, self.last, self.count = *_TIME.unpack_from(octets), *_TIME.unpack_from(octets, size - _SIZE), size // _SIZE
        self._events: list[EventRow] = []

    def add(self, octets: bytes, is_settled: bool = False) -> None:
        """Adds rows that came later. is_settled: no rules that acted at these rows are still to be read."""
        self._parts.append(octets)
        self.count += len(octets) // _SIZE
        (self.last,) = _TIME.unpack_from(octets, len(octets) - _SIZE)
        self.is_settled = self.is_settled and is_settled

    @property
    def octets(self) -> bytes:
        """The bytes of all rows."""
        if len(self._parts) > 1:
            self._parts = [b"".join(self._parts)]
        return self._parts[0]

    @property
    def rows(self) -> EventArray:
        """All rows."""
        return np.frombuffer(self.octets, DTYPE)

    def chosen(self, places: Iterable[int], order: Sequence[int]) -> bytes:
        """The bytes of some rows. places: in the order of time; order: the place in `rows` of each of these."""
        octets = self.octets
        return b"".join([octets[order[at] * _SIZE : (order[at] + 1) * _SIZE] for at in places])

    def row(self, at: int) -> bytes:
        """The bytes of the row at a place in `rows`."""
        return self.octets[at * _SIZE : (at + 1) * _SIZE]

    def registers(self, at: int) -> bytes:
        """nftables' registers in the rule hit at a place in `rows`."""
        return self.row(at)[_REGISTERS]

    def detail(self, at: int) -> DecisionDetail:
        """The decision detail at a place in `rows`."""
        return decision_detail.of_row(read_row(self.row(at)))

    @property
    def has_event(self) -> bool:
        """Whether there is a row that makes a hop on its own: not only rule hits and decision details."""
        return any(isinstance(e, Event) and e.kind != Kind.EVENT_CLUE for e in self.events)

    @property
    def events(self) -> list[EventRow]:
        """All rows as named tuples."""
        if len(self._events) < self.count:
            self._events = list(record.events(self.rows))
        return self._events
