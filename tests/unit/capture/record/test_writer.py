# SPDX-License-Identifier: Apache-2.0
"""The writer's thread: a disk that is full, slow, or accepts no more writes."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support import captures
from tests.support.waiting import PATIENCE, until
from tracer.capture.format import record_layout
from tracer.capture.format.schema import Record
from tracer.capture.record import writer as writing
from tracer.capture.record.buffer import Chunk
from tracer.capture.record.writer import CaptureWriter
from tracer.util.worker import user_warnings


def chunk(turn: int, events: int = 3) -> Chunk:
    slots = np.concatenate([captures.slots(captures.request(turn * 10 + n, 1000 * n)) for n in range(events)])
    return Chunk(turn, [(turn, Record.NOTE.value, "", f"turn {turn}")], [(turn * 1000, len(slots), 0)], [slots], slots.nbytes)


EVENTS = record_layout.count(chunk(1).slots[0])
"""Events of each chunk."""


class Disk:
    """A disk that accepts writes, is full, or delays each write until take() is called."""

    def __init__(self) -> None:
        self.full = False
        self.records: list[tuple[Any, ...]] = []
        self.batches: list[tuple[Any, ...]] = []
        self.begun = 0
        self._slow, self._take = False, threading.Semaphore(0)

    def insert(self, records: list[tuple[Any, ...]], batch: tuple[Any, ...] | None) -> None:
        self.begun += 1
        while self._slow and not self._take.acquire(timeout=0.01):
            pass
        if self.full:
            raise sqlite3.OperationalError("database or disk is full")
        self.records += records
        self.batches += [batch] if batch else []

    def hold(self) -> None:
        """Delays all writes from now on."""
        self._slow = True

    def take(self) -> None:
        """Accepts the delayed write, and delays the next one."""
        before = self.begun
        self._take.release()
        until(lambda: self.begun > before)

    def let_go(self) -> None:
        """Accepts all writes again."""
        self._slow = False

    @property
    def notes(self) -> list[tuple[Any, ...]]:
        return [row for row in self.records if row[1] == Record.NOTE]


@pytest.fixture(autouse=True)
def long_close_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CLOSE_SECONDS", PATIENCE)


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    made.let_go()


def writer_to(disk: Disk) -> CaptureWriter:
    return CaptureWriter(disk.insert, lambda: None, 0)


def wait_for_messages(writer: CaptureWriter) -> list[str]:
    """The writer's messages, when it has at least one."""
    messages: list[str] = []
    until(lambda: messages.extend(writer.messages()) or messages)  # type: ignore[func-returns-value]
    return messages


def test_a_full_disk_loses_events_counts_them_and_reports_them(disk: Disk) -> None:
    writer = writer_to(disk)
    writer.put(chunk(1))
    until(lambda: disk.batches)
    disk.full = True
    writer.put(chunk(2))
    writer.put(chunk(3))
    until(lambda: writer.lost == 2 * EVENTS)
    assert writer.messages() == [
        "The capture misses events from here on: it could not be written (database or disk is full). Tracing goes on."
    ]
    disk.full = False
    writer.put(chunk(4))
    assert wait_for_messages(writer) == [f"The capture is being written again; {2 * EVENTS} events are not in it."]
    assert writer.lost == 2 * EVENTS
    assert [batch[0] for batch in disk.batches] == [1, 4]
    # The records that explain events were kept, in order, and the gap is at its place.
    assert [row[3] for row in disk.notes] == [b'"turn 1"', b'"turn 2"', b'"turn 3"', b'"turn 4"']
    (gap,) = [r for r in disk.records if r[1] == Record.GAP]
    assert gap[0] == 2 and f"[{2 * EVENTS},".encode() in gap[3]
    writer.close()


def test_a_slow_disk_never_delays_the_tracing(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MAX_WAITING_BYTES", 3 * chunk(1).bytes)
    disk.hold()
    writer = writer_to(disk)
    for turn in range(1, 11):
        writer.put(chunk(turn))
    assert not disk.records, "all chunks were given away while no write was accepted"
    assert writer.lost == 7 * EVENTS and "the disk was too slow" in writer.messages()[0]
    disk.let_go()
    writer.close()
    assert sum(b[3] for b in disk.batches) + writer.lost == 10 * EVENTS
    assert len(disk.notes) == 10


def test_a_disk_that_stays_slow_is_reported_once(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single accepted write does not end the slow state."""
    monkeypatch.setattr(writing, "MAX_WAITING_BYTES", 2 * chunk(1).bytes)
    disk.hold()
    writer, messages = writer_to(disk), list[str]()
    writer.put(chunk(1))
    until(lambda: disk.begun)
    for turn in range(2, 31, 2):
        writer.put(chunk(turn))
        writer.put(chunk(turn + 1))
        disk.take()
        messages += writer.messages()
    assert len(messages) == 1 and "the disk was too slow" in messages[0]
    disk.let_go()
    assert wait_for_messages(writer) == [f"The capture is being written again; {writer.lost} events are not in it."]
    assert len(disk.batches) > 3 and writer.lost > 0
    writer.close()
    assert writer.messages() == []


def test_the_end_of_a_run_does_not_wait_for_ever(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that the disk does not accept in time are counted; the records that explain events and the end are written."""
    monkeypatch.setattr(writing, "CLOSE_SECONDS", 0.1)
    disk.hold()
    writer, chunks = writer_to(disk), [chunk(turn) for turn in range(1, 11)]
    chunks[-1].records.append((10, Record.END.value, "", [1.0, 10]))
    for each in chunks:
        writer.put(each)
    until(lambda: disk.begun)
    shortened = writer._shortened

    def late() -> Chunk:
        rest = shortened()
        monkeypatch.setattr(writing, "CLOSE_SECONDS", PATIENCE)
        disk.let_go()
        return rest

    monkeypatch.setattr(writer, "_shortened", late)
    writer.close()
    assert disk.records[-1][1] == Record.END, "a reader treats records after the end as a missing part"
    assert writer.lost == 9 * EVENTS and "the disk was too slow" in writer.messages()[0]
    assert sum(b[3] for b in disk.batches) + writer.lost == 10 * EVENTS
    assert len(disk.notes) == 10
    assert [r[3] for r in disk.records if r[1] == Record.GAP] == [f'[{writer.lost},"the disk was too slow"]'.encode()]
    assert sum(len(json.loads(b[4])) for b in disk.batches) == 10, "every batch has its place"


def test_a_disk_that_accepts_no_more_writes(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "CLOSE_SECONDS", 0.1)
    disk.hold()
    writer = writer_to(disk)
    writer.put(chunk(1))
    writer.close()
    assert writer.messages() == ["The end of the capture may be missing: the disk was too slow."]


def rules_of(turn: int, size: int) -> Chunk:
    """A chunk with a reading of rules of this size, bytes, and a note."""
    made = chunk(turn, 1)
    made.records.append((turn, Record.READING.value, "1 ip nat", {"wanted": []}))
    made.rule_bytes = size
    return made


def test_readings_of_rules_do_not_fill_the_memory(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a large node each replacement of the rules is a reading of 40 MB. Other records are kept."""
    monkeypatch.setattr(writing, "MAX_WAITING_RULE_BYTES", 1000)
    monkeypatch.setattr(user_warnings, "_keys", set())
    user_warnings.read()
    writer = CaptureWriter(disk.insert, lambda: None, 0)
    disk.hold()
    for turn in range(1, 21):
        writer.put(rules_of(turn, 300))
        assert writer._waiting_rule_bytes <= 1000
    disk.let_go()
    until(lambda: len(disk.notes) == 20)
    assert len([row for row in disk.records if row[1] == Record.READING]) == 3
    (warning,) = user_warnings.read()
    assert warning == "Rules that were read are not in the capture, so its packets have none: the disk was too slow."
    writer.put(rules_of(21, 300))
    writer.close()
    assert len([row for row in disk.records if row[1] == Record.READING]) == 4 and writer._waiting_rule_bytes == 0


def test_a_capture_ends_before_its_records_fill_the_memory(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written before is a complete beginning: no later packet is explained by older objects."""
    monkeypatch.setattr(writing, "MAX_WAITING_RECORDS", 10)
    writer = CaptureWriter(disk.insert, lambda: None, 0)
    disk.hold()
    for turn in range(1, 101):
        writer.put(chunk(turn))
        assert writer._waiting_records <= 11
    disk.let_go()
    writer.put(chunk(101))
    writer.close()
    assert [row[3] for row in disk.batches] == [EVENTS] * len(disk.batches) and len(disk.batches) <= 2
    assert len(disk.notes) == len(disk.batches) and writer.lost == (101 - len(disk.batches)) * EVENTS
    assert writer.messages() == ["The capture ends here: the disk was too slow. Tracing goes on."]
    assert not writer._retry and writer._waiting_records == writer._waiting_bytes == 0


def test_a_capture_ends_when_a_full_disk_holds_up_too_many_records(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MAX_RETRY_BYTES", 1000)
    writer = CaptureWriter(disk.insert, lambda: None, 0)
    writer.put(chunk(1))
    until(lambda: disk.batches)
    disk.full = True
    for turn in range(2, 200):
        writer.put(chunk(turn))
    until(lambda: writer._is_ended)
    assert sum(len(row[3]) for row in writer._retry) <= 1000
    disk.full = False
    writer.put(chunk(200))
    writer.close()
    assert len(disk.batches) == len(disk.notes) == 1 and writer.lost == 199 * EVENTS
    (first, last) = writer.messages()
    assert first.startswith("The capture misses events from here on") and last.startswith("The capture ends here: it could not")
