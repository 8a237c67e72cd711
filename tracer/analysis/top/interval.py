# SPDX-License-Identifier: Apache-2.0
"""The rows of one interval of `top`, at most MOST_ROWS at a time. What has no row of its own any more is counted together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from tracer.analysis.durations import PathDurations
from tracer.analysis.top.dimensions import DIMENSIONS, RowKey
from tracer.analysis.top.row import Row, merged
from tracer.model.handshake import HandshakeVerdict
from tracer.model.loss import LEFT_OUT
from tracer.model.packet import Packet
from tracer.packets.path_memo import PathMemo
from tracer.render.base import LostEvents
from tracer.util.lru_dict import LruDict

MOST_ROWS = 400
"""Number of rows of an interval that are counted separately."""


@dataclass(frozen=True)
class Losses:
    """What an interval lacks.

    Attributes:
        events: Lost events.
        shed: Packets of which nothing was recorded, because the ring buffer was nearly full.
        unexplained: Packets that were seen, but not explained before the end.
    """

    events: int = 0
    shed: int = 0
    unexplained: int = 0

    def __add__(self, other: Losses) -> Losses:
        return Losses(self.events + other.events, self.shed + other.shed, self.unexplained + other.unexplained)


@dataclass(frozen=True)
class Interval:
    """One interval, finished.

    Attributes:
        dimension: What the rows stand for, a name in DIMENSIONS.
        began: Time of its first packet, ns since the epoch; 0 = it has no packet.
        seconds: Its length, s.
        rows: The rows by their text, in no order.
        rest: All further rows together.
        evicted: Number of evictions of rows into `rest`.
        losses: What is missing in it.
        lost_by_probe: Lost events by probe, and shed packets as `packet`.
        so_far: What is missing in all intervals up to this one.
    """

    dimension: str
    began: int
    seconds: float
    rows: dict[str, Row]
    rest: Row = field(default_factory=Row)
    evicted: int = 0
    losses: Losses = field(default_factory=Losses)
    lost_by_probe: dict[str, int] = field(default_factory=dict)
    so_far: Losses = field(default_factory=Losses)

    @cached_property
    def total(self) -> Row:
        """All rows together."""
        return merged([*self.rows.values(), self.rest])


class Measurement:
    """Keys and times of packets. It lives as long as the run: what packets on a shared path have in common is kept with it."""

    def __init__(self) -> None:
        self.durations = PathDurations()
        self.keys = {name: PathMemo(dimension.of_packet) for name, dimension in DIMENSIONS.items()}


class IntervalCounter:
    """Counts the packets of one interval.

    Args:
        dimension: What the rows stand for, a name in DIMENSIONS.
        measurement: Gives keys and times.
    """

    def __init__(self, dimension: str, measurement: Measurement) -> None:
        self.dimension = dimension
        self._kind, self._durations, self._keys = DIMENSIONS[dimension], measurement.durations, measurement.keys[dimension]
        self._rest = Row()
        self._rows: LruDict[str, Row] = LruDict(MOST_ROWS, "rows of top", lambda key, row: self._rest.merge(row))
        self._lost: Counter[str] = Counter()
        self._began = 0

    def packet(self, packet: Packet) -> None:
        """Counts a packet, unless the table is one of SYNs."""
        if self._kind.of_syn is None:
            self._add(self._row(self._keys.of(packet)), packet)

    def syn(self, verdict: HandshakeVerdict) -> None:
        """Counts a SYN that has its cause."""
        syn = verdict.attempt.syn if verdict.attempt else None
        if self._kind.of_syn is not None:
            row = self._row(self._kind.of_syn(verdict))
            if syn:
                self._add(row, syn)
        elif syn:
            row = self._row(self._keys.of(syn))
        else:
            row = self._rest
        row.add_syn(verdict)

    def lost(self, loss: LostEvents) -> None:
        """Counts lost events, or shed packets."""
        self._lost[loss.probe] += loss.count

    def close(self, seconds: float, before: Losses, unexplained: int = 0) -> Interval:
        """The finished interval.

        Args:
            seconds: Its length, s.
            before: What was missing before it.
            unexplained: Packets that were seen in it, but not explained.
        """
        shed = self._lost[LEFT_OUT]
        losses = Losses(self._lost.total() - shed, shed, unexplained)
        rows, lost = dict(self._rows.items()), {probe: count for probe, count in self._lost.items() if count}
        evicted = self._rows.evicted
        return Interval(self.dimension, self._began, seconds, rows, self._rest, evicted, losses, lost, before + losses)

    def _row(self, key: RowKey) -> Row:
        row = self._rows.get(key.text)
        if row is None:
            row = self._rows[key.text] = Row()
        row.add_owner(key.owner)
        return row

    def _add(self, row: Row, packet: Packet) -> None:
        self._began = self._began or packet.time
        row.add(packet, list(self._durations.legs(packet)), self._durations.whole(packet))
