# SPDX-License-Identifier: Apache-2.0
"""The results that wait for credit: bounded, so the tracing never waits; what does not fit is counted by kind."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import NamedTuple

from tracer.model.packet import Packet
from tracer.protocol.messages import NEEDS_CREDIT, FrameKind, Shed
from tracer.util.evictions import evictions

MOST_WAITING = 16384
"""Largest number of results that wait for credit."""
MOST_WAITING_BYTES = 32 << 20
"""Largest size of encoded results that wait for credit, bytes."""
RESERVED_SHARE = 8
"""Packets leave one of this number of places to findings, verdicts and losses, which are few."""
PAUSE_SECONDS = 0.1
"""Interval at which a waiting thread looks whether the stream has ended, s."""
MOST_FRAMES = 2
"""Largest number of frames of one result: a packet can need its template first."""


class QueuedResult(NamedTuple):
    """A waiting result: its kind, and the packet or the body of its frame."""

    kind: FrameKind
    content: Packet | bytes


class FrameQueue:
    """The queue between the thread that traces and the thread that writes. waits: a full queue makes `put` wait (a replay).

    Attributes:
        credit: Number of frames that may be sent.
    """

    def __init__(self, waits: bool = False, most: int = MOST_WAITING) -> None:
        self._waits, self._most = waits, most
        self._entries: deque[QueuedResult] = deque()
        self._bytes = 0
        self._shed: Counter[str] = Counter()
        self._since = self._until = 0
        self._changed = threading.Condition()
        self._is_awake = self._is_ended = False
        self.credit = 0

    def put(self, kind: FrameKind, content: Packet | bytes) -> None:
        """Takes a result. A live run never waits here: what does not fit is counted."""
        with self._changed:
            while self._waits and self._is_full(kind, content) and not self._is_ended:
                self._changed.wait(PAUSE_SECONDS)
            if self._is_ended:
                return
            if self._is_full(kind, content):
                self._count_shed(QueuedResult(kind, content))
            else:
                self._entries.append(QueuedResult(kind, content))
                self._bytes += _size(content)
            self._changed.notify_all()

    def put_waiting(self, kind: FrameKind, content: bytes) -> bool:
        """Takes a result, and waits for room in a quarter of the queue. Returns False when the stream has ended."""
        with self._changed:
            while not self._is_ended and (self._bytes > MOST_WAITING_BYTES // 4 or len(self._entries) > self._most // 4):
                self._changed.wait(PAUSE_SECONDS)
            if not self._is_ended:
                self._entries.append(QueuedResult(kind, content))
                self._bytes += _size(content)
                self._changed.notify_all()
            return not self._is_ended

    def _is_full(self, kind: FrameKind, content: Packet | bytes) -> bool:
        if kind not in NEEDS_CREDIT:
            return False  # the beginning and the end of a run
        most = self._most - self._most // RESERVED_SHARE if kind is FrameKind.PACKET else self._most
        return len(self._entries) >= most or bool(self._bytes and self._bytes + _size(content) > MOST_WAITING_BYTES)

    def _count_shed(self, entry: QueuedResult) -> None:
        now, content = time.monotonic_ns(), entry.content
        began = content.hops[0].time if isinstance(content, Packet) and len(content.hops) else now
        self._since, self._until = min(self._since or began, began), now
        self._shed[entry.kind.name.lower()] += 1
        evictions.add("results that wait for the client")

    def shed(self, kind: FrameKind) -> None:
        """Counts a result that is too large for a frame."""
        with self._changed:
            self._count_shed(QueuedResult(kind, b""))

    def add_credit(self, frames: int) -> None:
        """The client takes this many more frames."""
        with self._changed:
            self.credit += frames
            self._changed.notify_all()

    def read(self, most: int, seconds: float) -> tuple[list[QueuedResult], Shed | None]:
        """Removes the entries that can be sent now, and gives what was shed since the last call.

        A packet takes the credit of MOST_FRAMES frames: `add_credit` gives back what it did not use.

        Args:
            most: Largest number of entries.
            seconds: Longest wait for one, s.
        """
        entries: list[QueuedResult] = []
        with self._changed:
            if not (self._shed or self._is_next_ready() or self._is_awake):
                self._changed.wait(seconds)
            self._is_awake = False
            while len(entries) < most and self._is_next_ready():
                entry = self._entries.popleft()
                self._bytes -= _size(entry.content)
                if entry.kind in NEEDS_CREDIT:
                    self.credit -= MOST_FRAMES
                entries.append(entry)
            shed = Shed(dict(self._shed), self._since, self._until) if self._shed else None
            self._shed, self._since, self._until = Counter(), 0, 0
            self._changed.notify_all()
        return entries, shed

    def _is_next_ready(self) -> bool:
        return bool(self._entries) and (self.credit >= MOST_FRAMES or self._entries[0].kind not in NEEDS_CREDIT)

    def wake(self) -> None:
        """Ends the wait of `read`."""
        with self._changed:
            self._is_awake = True
            self._changed.notify_all()

    def shed_rest(self) -> None:
        """Counts what still needs credit as shed: the run ends, and the client takes nothing."""
        with self._changed:
            for entry in self._entries:
                if entry.kind in NEEDS_CREDIT:
                    self._count_shed(entry)
            self._entries = deque(entry for entry in self._entries if entry.kind not in NEEDS_CREDIT)
            self._bytes = sum(_size(entry.content) for entry in self._entries)
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._entries)

    def end(self) -> None:
        """Nothing is taken or sent any more."""
        with self._changed:
            self._is_ended = self._is_awake = True
            self._entries.clear()
            self._changed.notify_all()


def _size(content: Packet | bytes) -> int:
    return len(content) if isinstance(content, bytes) else 0
