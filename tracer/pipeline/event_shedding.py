# SPDX-License-Identifier: Apache-2.0
"""Leaves out packets of a reading of the ring buffer that has more events than the budget allows.

A packet is left out whole, or not at all: its identity has the time when it was first seen. So all packets are left out that
began in a period, from the time of the first event too many to the time of the reading, and their later events, too. No packet
that began before the previous reading is: a part of it may have been explained.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracer.events.record import DTYPE, Kind, Slots
from tracer.model.loss import FAILURES_LEFT_OUT, LEFT_OUT, OPENINGS_LEFT_OUT, Loss
from tracer.util.bounded_queue import BoundedQueue

MOST_PERIODS = 16
"""Most periods whose packets are left out. A later event of an older one makes a packet that is incomplete."""
PERIOD_NS = 60_000_000_000
"""Age at which a period is forgotten, ns: a packet is rarely under way for so long."""
TIME_MASK = (1 << 56) - 1
"""Bits of the time in a packet's identity; below them is the number of the CPU."""


class EventShedder:
    """Takes the slots of each reading in turn. before: time of the reading before the first one, ns, CLOCK_MONOTONIC."""

    def __init__(self, before: int) -> None:
        self._before = before
        self._periods: BoundedQueue[tuple[int, int]] = BoundedQueue(MOST_PERIODS, "periods with packets that were left out")
        self._counts = dict.fromkeys((OPENINGS_LEFT_OUT, FAILURES_LEFT_OUT), 0)

    def limited(self, slots: Slots, now: int, most: int | None) -> Slots:
        """The slots without those of packets that are left out.

        Args:
            slots: As drained, of shape (n, slot).
            now: Time before they were drained, ns, CLOCK_MONOTONIC.
            most: Number of events from which packets are left out; None = no limit.
        """
        before, self._before = self._before, now
        while self._periods and self._periods[0][1] < now - PERIOD_NS:
            self._periods.popleft()
        starts = np.flatnonzero(slots[:, :4].view("<u4").ravel()) if len(slots) else np.zeros(0, np.intp)
        if most is not None and len(starts) > most:
            first = max(int(_field(slots, starts[most : most + 1], "time")[0]), before)
            if first < now:
                self._periods.append((first, now))
        if not self._periods or not len(starts):
            return slots
        began = _field(slots, starts, "packet") >> np.uint64(8)
        out = np.zeros(len(starts), bool)
        for since, until in self._periods:
            out |= (began >= np.uint64(since & TIME_MASK)) & (began < np.uint64(until & TIME_MASK))
        if not out.any():
            return slots
        self._count(slots, starts[out])
        # An event has the slots up to the next event.
        kept: Slots = slots[np.repeat(~out, np.diff(np.append(starts, len(slots))))]
        return kept

    def _count(self, slots: Slots, starts: npt.NDArray[np.intp]) -> None:
        kinds, hops = _field(slots, starts, "kind"), _field(slots, starts, "hop")
        is_drop = kinds == int(Kind.EVENT_DROP)
        is_first = (hops == 0) & ~is_drop & (kinds != int(Kind.EVENT_STEPS)) & (kinds != int(Kind.EVENT_RAW))
        late_drops = int((is_drop & (hops > 0)).sum())
        self._counts[FAILURES_LEFT_OUT] += int(is_drop.sum())
        self._counts[OPENINGS_LEFT_OUT] += max(int(is_first.sum()) - late_drops, 0)

    def losses(self) -> Sequence[Loss]:
        """The packets that were left out since the previous call."""
        found = [Loss(LEFT_OUT, -1, count, why) for why, count in self._counts.items() if count]
        self._counts = dict.fromkeys(self._counts, 0)
        return found


def _field(slots: Slots, starts: npt.NDArray[np.intp], name: str) -> npt.NDArray[np.uint64]:
    """A field in the first slot of events. starts: numbers of the slots in which they begin."""
    kind, offset = DTYPE[name], int(DTYPE.fields[name][1]) if DTYPE.fields else 0
    octets = slots[starts, 8 + offset : 8 + offset + kind.itemsize]
    return np.ascontiguousarray(octets).view(kind).ravel().astype(np.uint64)
