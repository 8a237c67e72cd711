# SPDX-License-Identifier: Apache-2.0
"""The clock of a node against that of the client, from the round trips of pings, as NTP does it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tracer.util.bounded_queue import BoundedQueue

MOST_SAMPLES = 64
"""Number of answered pings that are kept: about a minute."""
MOST_OPEN = 32
"""Number of pings without an answer that are kept."""
DRIFT_PPM = 100
"""Largest difference of two clocks' speeds, parts per million: quartz has 50, and NTP's slewing is 500 only for seconds."""


@dataclass(frozen=True)
class _Sample:
    """An answered ping. asked: when it was sent, the client's clock, ns: the clocks drift apart from then on."""

    offset: int
    round_trip: int
    asked: int


class NodeClock:
    """Offset of a node's clock.

    The offset is what is added to the times of the node's packets to get times of the client's clock, ns. Its error is half of
    the round trip: the answer may have come back at once, or the question may have arrived at once.
    """

    def __init__(self) -> None:
        self._samples: deque[_Sample] = BoundedQueue(MOST_SAMPLES, "round trips of a node")
        self._open: deque[tuple[int, int]] = BoundedQueue(MOST_OPEN, "pings without an answer")
        self.packets: int | None = None
        """ns to add to the node's CLOCK_MONOTONIC to get the times of its packets; None = not known yet."""

    def set_packets(self, offset: int, is_replay: bool) -> None:
        """The agent says what it adds to CLOCK_MONOTONIC to get the times of its packets, ns.

        Args:
            offset: That number.
            is_replay: The packets are those of a capture: their clock is not the one that answers pings.
        """
        self.packets = None if is_replay else offset

    def begun(self, now: int) -> int:
        """From when on the node shows packets, ns of the client's clock. now: the same clock, when the node said so."""
        return now

    def ask(self, number: int, now: int) -> None:
        """A ping is sent. now: the client's clock, ns."""
        self._open.append((number, now))

    def answer(self, number: int, received: int, sent: int, now: int) -> None:
        """A pong has come; received, sent: the node's CLOCK_MONOTONIC, ns. A pong that answers no ping is ignored."""
        asked = next((time for each, time in self._open if each == number), None)
        if asked is None or sent < received:
            return
        while self._open and self._open[0][0] <= number:
            self._open.popleft()
        # The node measured how long it held the ping with its own clock, which may be faster or slower.
        drift = (sent - received) * DRIFT_PPM // 1_000_000 + 1
        round_trip = now - asked - (sent - received)
        if round_trip >= -drift:
            self._samples.append(_Sample((asked + now - received - sent) // 2, max(0, round_trip) + 2 * drift, asked))

    def read(self, at: int) -> tuple[int | None, int]:
        """Offset of the node's packets and its largest error, ns; (None, 0) = not known. at: time by the client's clock, ns."""
        if self.packets is None or not self._samples:
            return None, 0
        best = min(self._samples, key=lambda each: _error(each, at))
        return best.offset - self.packets, _error(best, at)

    def of_packet(self, time: int) -> tuple[int | None, int]:
        """The same at the time of a packet, which may be older than the pings that are kept. time: ns, by the node's clock."""
        offset, _ = self.read(time)
        return self.read(time + (offset or 0))

    def shift(self, time: int) -> tuple[int | None, int]:
        """What is added to the node's CLOCK_MONOTONIC to get the client's clock, and its largest error, ns; (None, 0) = not
        known. time: the node's CLOCK_MONOTONIC, ns."""
        if self.packets is None:
            return None, 0
        offset, error = self.of_packet(time + self.packets)
        return (None, 0) if offset is None else (offset + self.packets, error)


def _error(sample: _Sample, at: int) -> int:
    return sample.round_trip // 2 + abs(at - sample.asked) * DRIFT_PPM // 1_000_000 + 1
