# SPDX-License-Identifier: Apache-2.0
"""The clock of a node whose capture is read: pings say nothing about it, its capture may."""

from __future__ import annotations

NEVER = 1 << 62
"""A time after all others, ns."""


class RecordedClock:
    """Offset of the clock of recorded packets, as in their capture.

    Args:
        offset: What is added to the times of the packets to get times of the machine that collected the captures, ns; None =
            the clock was not compared with another one.
        error: Largest error of the offset, ns.
        began: From when on the capture has packets, by the clock of its packets, ns since the epoch; 0 = not known.
    """

    def __init__(self, offset: int | None = None, error: int = 0, began: int = 0) -> None:
        self._offset, self._error, self._began = offset, error, began
        self.packets: int | None = None
        """ns to add to the node's CLOCK_MONOTONIC to get the times of its packets; None = not known yet."""

    def set_packets(self, offset: int, is_replay: bool) -> None:
        """As NodeClock.set_packets."""
        self.packets = offset

    def begun(self, now: int) -> int:
        """As NodeClock.begun: from when on the capture has packets. If it does not say so, it has none for certain."""
        return self._began + (self._offset or 0) + self._error if self._began else NEVER

    def ask(self, number: int, now: int) -> None:
        """A ping only keeps the agent alive."""

    def answer(self, number: int, received: int, sent: int, now: int) -> None:
        """Its answer says nothing about the node."""

    def read(self, at: int) -> tuple[int | None, int]:
        """As NodeClock.read."""
        return self._offset, self._error

    def of_packet(self, time: int) -> tuple[int | None, int]:
        """As NodeClock.of_packet."""
        return self._offset, self._error

    def shift(self, time: int) -> tuple[int | None, int]:
        """As NodeClock.shift. A clock that was not compared with another one is taken for the reference clock."""
        return (None, 0) if self.packets is None else (self.packets + (self._offset or 0), self._error)
