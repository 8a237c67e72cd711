# SPDX-License-Identifier: Apache-2.0
"""How far the clocks of two nodes are apart: from their offsets to a reference clock, tightened by packets.

A packet arrives after it left. So the difference of the two clocks is at most the time from its departure by the one clock to
its arrival by the other, and packets in the opposite direction give the other bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tracer.util.lru_dict import LruDict

DRIFT_PPM = 500
"""Largest difference of the speeds of two clocks, parts per million: the kernel slews CLOCK_MONOTONIC by no more."""
UNKNOWN_ERROR_NS = 5_000_000_000
"""Error of a clock that was not compared with another: nodes with any time service are closer than this, ns."""
PAIRS_KEPT = 8192
"""Number of pairs of nodes for which bounds are kept."""
NO_BOUND = 1 << 62
_MILLION = 1_000_000


class ClockRange(NamedTuple):
    """Bounds of the difference of two clocks: what is added to the first one's time to get the second one's time, ns."""

    low: int
    high: int

    @property
    def is_known(self) -> bool:
        """Whether the two clocks were compared."""
        return self.high - self.low < UNKNOWN_ERROR_NS


SAME_CLOCK = ClockRange(0, 0)
"""The difference of a clock from itself."""


class ReferenceOffset(NamedTuple):
    """What is added to a node's time to get the time of the reference clock, ns, and its largest error."""

    offset: int
    error: int


NO_OFFSET = ReferenceOffset(0, UNKNOWN_ERROR_NS)


@dataclass(slots=True)
class _Bounds:
    """Bounds that packets gave, each with the first node's time for which it was found, ns."""

    low: int = -NO_BOUND
    low_time: int = 0
    high: int = NO_BOUND
    high_time: int = 0

    def at(self, time: int) -> tuple[int, int]:
        """The bounds at a time of the first node: the two clocks may have drifted apart since they were found."""
        return self.low - _drift(time - self.low_time), self.high + _drift(time - self.high_time)


class PairClocks:
    """The clocks of all nodes.

    Attributes:
        contradictions: How often new bounds contradicted earlier ones: a clock was changed by more than it can drift.
    """

    def __init__(self) -> None:
        self._offsets: dict[str, ReferenceOffset] = {}
        self._pairs: LruDict[tuple[str, str], _Bounds] = LruDict(PAIRS_KEPT, "bounds of pairs of clocks")
        self.contradictions = 0

    @property
    def error(self) -> int:
        """The largest error of a node's offset, ns."""
        return max((each.error for each in self._offsets.values()), default=0)

    def set_offset(self, node: str, offset: int | None, error: int) -> None:
        """The offset of a node's clock to the reference clock, as last measured; None = not known."""
        self._offsets[node] = NO_OFFSET if offset is None else ReferenceOffset(offset, error)

    def offset(self, node: str) -> ReferenceOffset:
        """The offset of a node's clock to the reference clock."""
        return self._offsets.get(node, NO_OFFSET)

    def note_order(self, sender: str, left: int, receiver: str, arrived: int) -> None:
        """A packet left the sender and arrived at the receiver; each time by the node's own clock, ns."""
        if sender == receiver:
            return
        is_ordered = sender < receiver
        pair = (sender, receiver) if is_ordered else (receiver, sender)
        bounds = self._pairs.get(pair)
        if bounds is None:
            bounds = self._pairs[pair] = _Bounds()
        if is_ordered:
            if (bound := arrived - left) <= bounds.at(left)[1]:
                bounds.high, bounds.high_time = bound, left
        elif (bound := left - arrived) >= bounds.at(arrived)[0]:
            bounds.low, bounds.low_time = bound, arrived
        low, high = bounds.at(left if is_ordered else arrived)
        if low > high:
            self.contradictions += 1
            if is_ordered:
                bounds.low = -NO_BOUND
            else:
                bounds.high = NO_BOUND

    def difference(self, first: str, second: str, time: int) -> ClockRange:
        """What is added to the first node's time to get the second node's time, at `time` of the first node, ns."""
        if first == second:
            return SAME_CLOCK
        own, other = self._offsets.get(first, NO_OFFSET), self._offsets.get(second, NO_OFFSET)
        middle, error = own.offset - other.offset, own.error + other.error
        low, high = middle - error, middle + error
        if first < second:
            bounds = self._pairs.get((first, second))
            if bounds is None:
                return ClockRange(low, high)
            found_low, found_high = bounds.at(time)
        else:
            bounds = self._pairs.get((second, first))
            if bounds is None:
                return ClockRange(low, high)
            found_high, found_low = (-each for each in bounds.at(time + middle))
        tight_low, tight_high = max(low, found_low), min(high, found_high)
        # Packets and pings contradict each other: one of the clocks was changed. Both statements are kept open.
        return ClockRange(tight_low, tight_high) if tight_low <= tight_high else ClockRange(low, high)


def _drift(elapsed: int) -> int:
    """How far two clocks drift apart in a time, ns."""
    return abs(elapsed) * DRIFT_PPM // _MILLION
