# SPDX-License-Identifier: Apache-2.0
"""How long packets took from one place to the next: the legs of a packet's path, and histograms of times.

Times are between probes, so they hold what the probes themselves cost.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tracer.model.hop import DetailHop, Hop, NatHookHop, NatHop
from tracer.model.packet import Packet
from tracer.packets.path_memo import PathMemo
from tracer.packets.shared_packet import hop_time

STEPS = 8
"""Number of buckets per power of two."""


def short_time(us: float) -> str:
    """A time in us with its unit: 12us, 3.4ms, 1.2s."""
    if us < 999.5:
        return f"{us:.0f}us" if us >= 9.95 else f"{us:.1f}us"
    if us < 999_500:
        return f"{us / 1e3:.0f}ms" if us >= 99_500 else f"{us / 1e3:.1f}ms"
    return f"{us / 1e6:.1f}s"


class Distribution:
    """A histogram of times in ns, in buckets an eighth of a power of two wide: percentiles are right to a tenth."""

    __slots__ = ("_counts", "count", "most")

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = self.most = 0

    def add(self, ns: int) -> None:
        """Counts one time."""
        self._counts[int(math.log2(ns) * STEPS) if ns > 0 else -1] += 1
        self.count, self.most = self.count + 1, max(self.most, ns)

    def merge(self, other: Distribution) -> None:
        """Counts all times of another histogram."""
        self._counts.update(other._counts)
        self.count, self.most = self.count + other.count, max(self.most, other.most)

    def at(self, share: float) -> float:
        """Returns the time, in us, that this share of the values does not exceed."""
        wanted, seen = share * self.count, 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return min(2.0 ** ((bucket + 1) / STEPS), self.most) / 1e3 if bucket >= 0 else 0.0
        return self.most / 1e3


class Leg(NamedTuple):
    """The way of a packet from one place to the next.

    Attributes:
        way: The two places, each a namespace and a hook, or the kind of hop.
        begin: Number of the last hop at the first place.
        end: Number of the first hop at the second place.
    """

    way: tuple[str, str]
    begin: int
    end: int


class PacketPath(NamedTuple):
    """Which hops of a packet bound its legs.

    Attributes:
        legs: The legs, in order.
        ends: Numbers of the first and the last hop; None = fewer than two hops.
    """

    legs: tuple[Leg, ...]
    ends: tuple[int, int] | None


class PathDurations:
    """Measures packets. What packets on a shared path have in common is computed once."""

    def __init__(self) -> None:
        self._paths = PathMemo(lambda packet: _path(packet.hops))

    def legs(self, packet: Packet) -> Iterator[tuple[tuple[str, str], int]]:
        """Yields each leg of the packet with its time, ns."""
        for way, begin, end in self._paths.of(packet).legs:
            yield way, hop_time(packet, end) - hop_time(packet, begin)

    def whole(self, packet: Packet) -> int | None:
        """The time from the first probe to the last, ns; None = fewer than two hops."""
        ends = self._paths.of(packet).ends
        return hop_time(packet, ends[1]) - hop_time(packet, ends[0]) if ends else None


def _path(hops: Sequence[Hop]) -> PacketPath:
    places: list[tuple[str, int]] = []
    legs, own = [], []
    for number, hop in enumerate(hops):
        if hop.clone or isinstance(hop, (NatHop, NatHookHop, DetailHop)):
            continue
        own.append(number)
        place = f"{hop.netns} {hop.hook or hop.kind}"
        # The last event of a place is the time of leaving it; the first one, that of reaching it.
        if places and places[-1][0] == place:
            places[-1] = place, number
            continue
        if places:
            legs.append(Leg((places[-1][0], place), places[-1][1], number))
        places.append((place, number))
    return PacketPath(tuple(legs), (own[0], own[-1]) if len(own) > 1 else None)
