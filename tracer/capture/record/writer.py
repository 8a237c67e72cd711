# SPDX-License-Identifier: Apache-2.0
"""Writes chunks to a capture in a thread of its own, one transaction each.

Whatever was committed reads back after a crash. The tracing never waits: when the disk is too slow, batches that find no room
in memory are dropped and counted; when it is full, they are dropped and counted until there is room again. What the packets
are explained with (answers, rules, objects) is kept and tried again, for without it the rest is worth less.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from tracer.capture.format import record_layout
from tracer.capture.format.codec import pack
from tracer.capture.format.schema import Record
from tracer.capture.record.buffer import Chunk, Row
from tracer.capture.redact.records import RecordRedactor
from tracer.util.worker import Worker, user_warnings

ROOM = 128 << 20
"""Bytes of slots that may wait for the disk."""
HURRY = ROOM // 4
"""From here on nothing is compressed: that takes longer than the disk does."""
CLOSE_SECONDS = 30.0
"""How long the end of a run waits for what is to be written; then for the rest without its slots."""
SLOW = "the disk was too slow"
LEFT = 64 << 20
"""Bytes of records that are kept to be tried again; older ones are given up then."""

Insert = Callable[[list[tuple[Any, ...]], tuple[Any, ...] | None], None]
"""Puts records, and a batch, into the file in one transaction. sqlite3.Error, OSError."""


class CaptureWriter:
    """A thread. insert, close: to be called in it alone. wall: what to add to CLOCK_MONOTONIC to get ns since the epoch.

    redacted: what everything passes before it is written.
    """

    def __init__(self, insert: Insert, close: Callable[[], None], wall: int, redacted: RecordRedactor | None = None) -> None:
        self._insert, self._close, self._wall, self._redacted = insert, close, wall, redacted
        self._waiting = 0
        self._lock = threading.Lock()
        self._chunks: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
        self._left: list[tuple[Any, ...]] = []
        self._gap: tuple[int, int, str] | None = None
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._well, self._missing = True, 0
        self.lost = self.events = self.stored = 0
        self._thread = Worker("capture", self._work).start()

    def put(self, chunk: Chunk) -> None:
        """Takes a chunk; never waits. Without its slots if there is no room for them."""
        with self._lock:
            room = not self._waiting or self._waiting + chunk.bytes <= ROOM
            self._waiting += chunk.bytes if room else 0
        if not room:
            self._miss(chunk, SLOW)
        self._chunks.put(chunk)

    def _miss(self, chunk: Chunk, why: str) -> None:
        """The chunk's slots are given up, and what conntrack told; its turns stay."""
        count = sum(record_layout.of_packets(slots) for slots in chunk.slots)
        chunk.slots, chunk.bytes = [], 0
        chunk.records = [row for row in chunk.records if row[1] != Record.CONNTRACK]
        chunk.turns = [(now, 0, last) for now, _, last in chunk.turns]
        if count:
            with self._lock:
                turn, before, _ = self._gap or (chunk.turn, 0, why)
                self._gap = turn, before + count, why
                self.lost += count
                self._missing += count
                first, self._well = self._well, False
            if first:
                self._said.put(f"The capture misses events from here on: {why}. Tracing goes on.")

    def said(self) -> list[str]:
        """What the user should be told since the last call."""
        told = []
        while True:
            try:
                told.append(self._said.get_nowait())
            except queue.Empty:
                return told

    def close(self) -> None:
        """Writes what waits; slots that the disk does not take in time are given up, too, and counted."""
        self._chunks.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._chunks.put(self._shortened())
            self._chunks.put(None)
            self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._said.put(f"The end of the capture may be missing: {SLOW}.")

    def _shortened(self) -> Chunk:
        """What waits, as one chunk without slots: one transaction."""
        rest = Chunk(0)
        with suppress(queue.Empty):
            while True:
                chunk = self._chunks.get_nowait()
                if chunk:
                    held = chunk.bytes
                    self._miss(chunk, SLOW)
                    with self._lock:
                        self._waiting -= held
                    rest.turn = rest.turn or chunk.turn
                    rest.records += chunk.records
                    rest.turns += chunk.turns
        return rest

    def _work(self) -> bool:
        chunk = self._chunks.get()
        if chunk is None:
            self._finish()
            return False
        held = chunk.bytes
        try:
            self._write(chunk)
        except Exception as e:
            user_warnings.add_failure("writing the capture", e)
            self._left = []  # one of them may be the reason, and would be it again
            self._miss(chunk, f"it could not be made ({type(e).__name__})")
        finally:
            with self._lock:
                self._waiting -= held
        return True

    def _finish(self) -> None:
        try:
            if self._left or self._gap:
                self._write(Chunk(0))
        except Exception as e:
            user_warnings.add_failure("writing the end of the capture", e)
        try:
            self._close()
        except Exception as e:
            user_warnings.add_failure("closing the capture", e)

    def _write(self, chunk: Chunk) -> None:
        self._left += [row for row in map(self._stored, chunk.records) if row]
        with self._lock:
            gap = self._gap
        rows = list(self._left)
        told = gap and self._stored((gap[0], Record.GAP.value, gap[2], [gap[1], gap[2]]))
        if told:
            # A run that has ended says so last.
            rows.insert(len(rows) - (bool(rows) and rows[-1][1] == Record.END), told)
        batch = self._batch(chunk)
        try:
            self._insert(rows, batch)
        except (sqlite3.Error, OSError) as e:
            self._miss(chunk, f"it could not be written ({e})")
            while sum(len(row[3]) for row in self._left) > LEFT:
                del self._left[: len(self._left) // 2 + 1]
            return
        self._left = []
        if batch:
            self.events += batch[3]
            self.stored += len(batch[5])
        with self._lock:
            if gap:
                self._gap = None if self._gap == gap else self._gap and (self._gap[0], self._gap[1] - gap[1], self._gap[2])
            # A disk that is too slow takes something now and then: all is well when nothing else waits for it.
            again = not self._well and self._gap is None and self._waiting <= chunk.bytes
            missing = self._missing
            if again:
                self._well, self._missing = True, 0
        if again:
            self._said.put(f"The capture is being written again; {missing} events are not in it.")

    def _batch(self, chunk: Chunk) -> tuple[Any, ...] | None:
        """turn, began, ended, events, turns, slots."""
        if not chunk.turns:
            return None
        slots = np.concatenate(chunk.slots) if chunk.slots else np.zeros((0, record_layout.SLOT), np.uint8)
        if self._redacted:
            slots = self._redacted.slots(slots)
        hurry = self._waiting > HURRY
        began, ended = chunk.turns[0][0] + self._wall, chunk.turns[-1][0] + self._wall
        return (
            chunk.turn,
            began,
            ended,
            record_layout.count(slots),
            pack(chunk.turns),
            record_layout.pack(slots, 0 if hurry else 1),
        )

    def _stored(self, row: Row) -> tuple[Any, ...] | None:
        """A record as it is stored; None when it is not: when it cannot be, that is said, and the rest is written."""
        kind = row[1]
        try:
            kept = self._redacted.row(row) if self._redacted else row
            if kept is None:
                return None
            turn, kind, key, body = kept
            return turn, kind, key, pack(body() if callable(body) else body)
        except (TypeError, ValueError, LookupError, AttributeError) as e:
            self._said.put(f"A record of the capture could not be made ({kind}: {e}).")
            return None
