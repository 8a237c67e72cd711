# SPDX-License-Identifier: Apache-2.0
"""Writes chunks to a capture in a separate thread, one transaction per chunk.

Committed data can be read after a crash. The tracing never waits for the disk. When the disk is too slow, slots that do not fit
into memory are dropped and counted; when it is full, slots are dropped and counted until there is space again. The inputs that
explain packets (answers, rules, objects) are kept and written later, because the other packets need them. When these do not fit
into memory either, the capture ends there: without one of them, a replay could state something wrong about later packets.
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
from tracer.util.evictions import evictions
from tracer.util.worker import Worker, user_warnings

MAX_WAITING_BYTES = 128 << 20
"""Maximum length of slots that wait for the disk, bytes."""
UNCOMPRESSED_BYTES = MAX_WAITING_BYTES // 4
"""Length of waiting slots from which slots are not compressed, bytes: compression takes longer than the disk."""
CLOSE_SECONDS = 30.0
"""Maximum time that the end of a run waits for the writer, seconds; then once more, for the remaining records without slots."""
SLOW = "the disk was too slow"
MAX_RETRY_BYTES = 64 << 20
"""Maximum length of records that are kept for another attempt, bytes; with more the capture ends."""
MAX_WAITING_RECORDS = 1 << 18
"""Maximum number of records that wait for the disk; with more the capture ends."""
MAX_WAITING_RULE_BYTES = 128 << 20
"""Maximum memory of readings of rules that wait for the disk, bytes; more are dropped, and their packets have no rules."""
RULE_RECORDS = (Record.READING, Record.NFT)

Insert = Callable[[list[tuple[Any, ...]], tuple[Any, ...] | None], None]
"""Writes records and a chunk of batches in one transaction. Raises sqlite3.Error, OSError."""


class CaptureWriter:
    """Writes chunks in a thread.

    Args:
        insert: writes to the file; called only in this thread.
        close: closes the file; called only in this thread.
        wall_offset: ns to add to CLOCK_MONOTONIC to get ns since the epoch.
        redactor: redacts everything before it is written; None = nothing is redacted.

    Attributes:
        lost: number of packet events that are not in the capture.
        events: number of records of the ring that are in the capture.
        stored: length of the stored slots, bytes.
    """

    def __init__(
        self, insert: Insert, close: Callable[[], None], wall_offset: int, redactor: RecordRedactor | None = None
    ) -> None:
        self._insert, self._close, self._wall_offset, self._redactor = insert, close, wall_offset, redactor
        self._waiting_bytes = 0
        self._lock = threading.Lock()
        self._chunks: queue.SimpleQueue[Chunk | None] = queue.SimpleQueue()
        self._retry: list[tuple[Any, ...]] = []
        self._gap: tuple[int, int, str] | None = None
        self._messages: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._is_healthy, self._missing_events = True, 0
        self._waiting_records = self._waiting_rule_bytes = 0
        self._is_ended = False
        self.lost = self.events = self.stored = 0
        self._thread = Worker("capture", self._work).start()

    def put(self, chunk: Chunk) -> None:
        """Takes a chunk; never waits. Drops what does not fit into memory."""
        with self._lock:
            has_room_for_rules = not self._waiting_rule_bytes or (
                self._waiting_rule_bytes + chunk.rule_bytes <= MAX_WAITING_RULE_BYTES
            )
        if not has_room_for_rules:
            self._drop_rules(chunk)
        with self._lock:
            has_room = not self._waiting_bytes or self._waiting_bytes + chunk.bytes <= MAX_WAITING_BYTES
            self._waiting_bytes += chunk.bytes if has_room else 0
            self._waiting_records += len(chunk.records)
            self._waiting_rule_bytes += chunk.rule_bytes
            is_full = self._waiting_records > MAX_WAITING_RECORDS
        if not has_room:
            self._drop_slots(chunk, SLOW)
        if is_full:
            self._end_capture(SLOW)
        self._chunks.put(chunk if not self._is_ended else self._emptied(chunk))

    def _drop_rules(self, chunk: Chunk) -> None:
        """Drops the readings of rules of a chunk: a replay then says of their packets that the rules are not known."""
        kept = [row for row in chunk.records if row[1] not in RULE_RECORDS]
        evictions.add("readings of rules for the capture", len(chunk.records) - len(kept))
        chunk.records, chunk.rule_bytes = kept, 0
        user_warnings.add(f"Rules that were read are not in the capture, so its packets have none: {SLOW}.", "rules dropped")

    def _end_capture(self, reason: str) -> None:
        if not self._is_ended:
            self._is_ended = True
            self._messages.put(f"The capture ends here: {reason}. Tracing goes on.")

    def _emptied(self, chunk: Chunk) -> Chunk:
        """A chunk that is not written because the capture has ended. Its events are counted as lost; its memory is released."""
        count = sum(record_layout.count_packet_events(slots) for slots in chunk.slots)
        with self._lock:
            self.lost += count
            self._waiting_records -= len(chunk.records)
        evictions.add("records for the capture", len(chunk.records))
        chunk.records, chunk.batches, chunk.slots = [], [], []
        return chunk

    def _drop_slots(self, chunk: Chunk, reason: str) -> None:
        """Drops the slots and conntrack messages of a chunk; its batches stay, without slots."""
        count = sum(record_layout.count_packet_events(slots) for slots in chunk.slots)
        chunk.slots, chunk.bytes = [], 0
        chunk.records = [row for row in chunk.records if row[1] != Record.CONNTRACK]
        chunk.batches = [(now, 0, last) for now, _, last in chunk.batches]
        if count:
            with self._lock:
                first_batch, before, _ = self._gap or (chunk.first_batch, 0, reason)
                self._gap = first_batch, before + count, reason
                self.lost += count
                self._missing_events += count
                is_first, self._is_healthy = self._is_healthy, False
            if is_first:
                self._messages.put(f"The capture misses events from here on: {reason}. Tracing goes on.")

    def messages(self) -> list[str]:
        """Messages for the user since the previous call."""
        messages = []
        while True:
            try:
                messages.append(self._messages.get_nowait())
            except queue.Empty:
                return messages

    def close(self) -> None:
        """Writes the waiting chunks. Slots that the disk does not take in time are dropped and counted."""
        self._chunks.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._chunks.put(self._shortened())
            self._chunks.put(None)
            self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._messages.put(f"The end of the capture may be missing: {SLOW}.")

    def _shortened(self) -> Chunk:
        """The waiting chunks as one chunk without slots, to be written in one transaction."""
        rest = Chunk(0)
        with suppress(queue.Empty):
            while True:
                chunk = self._chunks.get_nowait()
                if chunk:
                    held = chunk.bytes
                    self._drop_slots(chunk, SLOW)
                    with self._lock:
                        self._waiting_bytes -= held
                    rest.first_batch = rest.first_batch or chunk.first_batch
                    rest.records += chunk.records
                    rest.batches += chunk.batches
        return rest

    def _work(self) -> bool:
        chunk = self._chunks.get()
        if chunk is None:
            self._finish()
            return False
        held, records, rule_bytes = chunk.bytes, len(chunk.records), chunk.rule_bytes
        try:
            if self._is_ended:
                self._emptied(chunk)
                records = 0
            else:
                self._write(chunk)
        except Exception as e:
            user_warnings.add_failure("writing the capture", e)
            self._retry = []  # one of them may be the cause, and would fail again
            self._drop_slots(chunk, f"it could not be made ({type(e).__name__})")
        finally:
            with self._lock:
                self._waiting_bytes -= held
                self._waiting_records -= records
                self._waiting_rule_bytes -= rule_bytes
        return True

    def _finish(self) -> None:
        try:
            if (self._retry or self._gap) and not self._is_ended:
                self._write(Chunk(0))
        except Exception as e:
            user_warnings.add_failure("writing the end of the capture", e)
        try:
            self._close()
        except Exception as e:
            user_warnings.add_failure("closing the capture", e)

    def _write(self, chunk: Chunk) -> None:
        self._retry += [row for row in map(self._record_row, chunk.records) if row]
        with self._lock:
            gap = self._gap
        rows = list(self._retry)
        gap_row = gap and self._record_row((gap[0], Record.GAP.value, gap[2], [gap[1], gap[2]]))
        if gap_row:
            # The END record of a run comes last.
            rows.insert(len(rows) - (bool(rows) and rows[-1][1] == Record.END), gap_row)
        batch = self._batch_row(chunk)
        try:
            self._insert(rows, batch)
        except (sqlite3.Error, OSError) as e:
            self._drop_slots(chunk, f"it could not be written ({e})")
            if sum(len(row[3]) for row in self._retry) > MAX_RETRY_BYTES:
                evictions.add("records for the capture", len(self._retry))
                self._retry = []
                self._end_capture(f"it could not be written ({e})")
            return
        self._retry = []
        if batch:
            self.events += batch[3]
            self.stored += len(batch[5])
        with self._lock:
            if gap:
                self._gap = None if self._gap == gap else self._gap and (self._gap[0], self._gap[1] - gap[1], self._gap[2])
            # A slow disk still takes single chunks: it has recovered only when no other chunk waits for it.
            has_recovered = not self._is_healthy and self._gap is None and self._waiting_bytes <= chunk.bytes
            missing = self._missing_events
            if has_recovered:
                self._is_healthy, self._missing_events = True, 0
        if has_recovered:
            self._messages.put(f"The capture is being written again; {missing} events are not in it.")

    def _batch_row(self, chunk: Chunk) -> tuple[Any, ...] | None:
        """The row of a chunk: columns of the table `batches`. None for a chunk without batches."""
        if not chunk.batches:
            return None
        slots = np.concatenate(chunk.slots) if chunk.slots else np.zeros((0, record_layout.SLOT), np.uint8)
        if self._redactor:
            slots = self._redactor.slots(slots)
        is_hurried = self._waiting_bytes > UNCOMPRESSED_BYTES
        began, ended = chunk.batches[0][0] + self._wall_offset, chunk.batches[-1][0] + self._wall_offset
        return (
            chunk.first_batch,
            began,
            ended,
            record_layout.count(slots),
            pack(chunk.batches),
            record_layout.pack(slots, 0 if is_hurried else 1),
        )

    def _record_row(self, row: Row) -> tuple[Any, ...] | None:
        """The row of a record. None when the redactor removes it, or when it cannot be encoded; then there is a message."""
        kind = row[1]
        try:
            kept = self._redactor.row(row) if self._redactor else row
            if kept is None:
                return None
            batch_number, kind, key, body = kept
            return batch_number, kind, key, pack(body() if callable(body) else body)
        except (TypeError, ValueError, LookupError, AttributeError) as e:
            self._messages.put(f"A record of the capture could not be made ({kind}: {e}).")
            return None
