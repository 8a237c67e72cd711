# SPDX-License-Identifier: Apache-2.0
"""Keeps the last seconds of a run in memory, and writes them to a capture file when there is a finding.

It takes the place of CaptureFiles: it gets the transactions of the recorder, compressed as they would be written. Those of the
last RING_SECONDS are kept, up to a number of bytes; of older ones only what later packets are explained with (CarryOver). Some
seconds after a finding all of it is written to one file, which gets its name when it is complete.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tracer.capture.format.codec import pack, unpack
from tracer.capture.format.schema import Record
from tracer.capture.record.capture_files import CaptureFiles, RotationLimits
from tracer.capture.record.carry_over import CarryOver, Stored
from tracer.capture.record.dump_counts import DumpCounts, DumpResult
from tracer.errors import OutputNotWritten
from tracer.util.evictions import evictions
from tracer.util.new_file import intruder

RING_BYTES, RING_SECONDS = 16_000_000, 30.0
"""Default length of what is kept, bytes compressed; and its greatest age, s."""
AFTER_SECONDS = 3.0
"""Time between a finding and the writing of its capture, s: the first retransmissions of a SYN are in it."""
KIND_SECONDS = 600.0
"""Shortest time between two captures of one kind of finding, s."""
MOST_FILES, MOST_BYTES = 20, 256_000_000
"""Most captures in the directory, and their length, bytes; beyond that the oldest ones are removed."""
PREFIX, UNFINISHED, SUFFIX = "finding-", ".unfinished-", ".k8st"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DumpLimits:
    """Bounds of a flight recorder; see the constants of this file."""

    ring_bytes: int = RING_BYTES
    most_files: int = MOST_FILES
    most_bytes: int = MOST_BYTES


class Transaction(NamedTuple):
    """Records and a chunk of batches. at: when they came, s. size: length of their bodies, bytes."""

    records: list[Stored]
    batch: tuple[Any, ...] | None
    at: float
    size: int


class DueCapture(NamedTuple):
    """A capture that will be written. finding: its name. at: when it is written, s."""

    finding: str
    at: float


class FlightRecorder:
    """Takes the transactions of a recording in one thread, and findings in another one.

    Args:
        directory: Where captures are written; it is made if it is not there.
        counts: Counts what becomes of the findings.
        limits: Its bounds.
        now: Clock, s.

    Attributes:
        names: The directory, for messages.
        limits: None: each capture is one file.

    Raises:
        OutputNotWritten: The directory cannot be used.
    """

    def __init__(
        self,
        directory: Path,
        counts: DumpCounts,
        limits: DumpLimits = DumpLimits(),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory, self._counts, self._limits, self._now = directory, counts, limits, now
        self.names, self.limits = [directory], RotationLimits()
        self._meta: dict[str, Any] = {}
        self._carry_over = CarryOver()
        self._ring: deque[Transaction] = deque()
        self._bytes, self._began, self._has_failed = 0, now(), False
        self._lock = threading.Lock()
        self._due: DueCapture | None = None
        self._last: dict[str, float] = {}
        self._messages: queue.SimpleQueue[str] = queue.SimpleQueue()
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if others := intruder(directory):
                raise OutputNotWritten(f"The directory {directory} is not safe: {others}. Choose another one with --dump.")
            for left in directory.glob(f"{UNFINISHED}*"):  # of a run that was killed
                left.unlink()
        except OSError as e:
            raise OutputNotWritten(f"The directory {directory} cannot be used for --dump: {e.strerror or e}.") from e

    def request(self, finding: str) -> None:
        """Asks for a capture around a finding that was just made. finding: its name."""
        now = self._now()
        with self._lock:
            if self._due:
                result = DumpResult.JOINED
            elif finding in self._last and now - self._last[finding] < KIND_SECONDS:
                result = DumpResult.LIMITED
            else:
                self._due = DueCapture(finding, now + AFTER_SECONDS)
                self._last[finding] = now
                return
            if result == DumpResult.JOINED:
                self._last[finding] = now
        self._counts.add((finding, result))

    def messages(self) -> list[str]:
        """Messages for the user since the previous call: the files that were written, and the first of several failures."""
        found = []
        with suppress(queue.Empty):
            while True:
                found.append(self._messages.get_nowait())
        return found

    def describe(self, meta: dict[str, Any]) -> None:
        """Sets the values that do not change in the run."""
        self._meta = meta

    def insert(self, records: list[tuple[Any, ...]], batch: tuple[Any, ...] | None) -> None:
        """Takes one transaction, and writes a capture that is due. Never fails: tracing goes on."""
        now = self._now()
        size = sum(len(record[3]) for record in records) + (len(batch[4]) + len(batch[5]) if batch else 0)
        self._ring.append(Transaction(records, batch, now, size))
        self._bytes += size
        while len(self._ring) > 1 and self._ring[0].at < now - RING_SECONDS:
            self._drop_oldest()
        while len(self._ring) > 1 and self._bytes > self._limits.ring_bytes:
            self._drop_oldest()
            evictions.add("transactions before a finding")
        if self._due and now >= self._due.at:
            self._write()

    def _drop_oldest(self) -> None:
        oldest = self._ring.popleft()
        self._bytes -= oldest.size
        for record in oldest.records:
            self._carry_over.feed(record)

    def discard(self) -> None:
        """Nothing was recorded."""

    def close(self) -> None:
        """The run has ended: a capture that is not due yet is written now."""
        if self._due:
            self._write()

    def _write(self) -> None:
        with self._lock:
            due, self._due = self._due, None
        if not due:
            return
        try:
            path = self._write_capture(due.finding)
            self._remove_oldest(path)
        except (OSError, sqlite3.Error, OutputNotWritten) as e:
            _log.debug("the capture of a finding was not written", exc_info=e)
            self._counts.add((due.finding, DumpResult.FAILED))
            for left in self._directory.glob(f"{UNFINISHED}*"):
                with suppress(OSError):
                    left.unlink()
            if not self._has_failed:
                reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
                self._messages.put(f"The capture of the finding {due.finding} was not written to {self._directory}: {reason}")
            self._has_failed = True
            return
        self._has_failed = False
        self._counts.add((due.finding, DumpResult.WRITTEN))
        self._messages.put(f"The capture of the finding {due.finding} is {path}")

    def _write_capture(self, finding: str) -> Path:
        """Writes what is kept to a file. Returns its path."""
        name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{re.sub(r'[^a-z0-9_]', '_', finding)}"
        unfinished = self._directory / f"{UNFINISHED}{name}{SUFFIX}"
        files = CaptureFiles(unfinished, carried=self._carry_over)
        try:
            files.describe(self._meta)
            for records, batch, _, _ in self._ring:
                files.insert([row for row in records if row[1] != Record.END], batch)
            last = max((batch[0] + len(unpack(batch[4])) - 1 for _, batch, _, _ in self._ring if batch), default=0)
            text = f"This capture was written at the finding {finding}; its run went on."
            end = [self._now() - self._began, last]
            files.insert([(last, Record.NOTE.value, "", pack(text)), (last, Record.END.value, "", pack(end))], None)
        except BaseException:
            files.discard()
            raise
        files.close()
        path, number = self._directory / f"{PREFIX}{name}{SUFFIX}", 1
        while path.exists():
            number += 1
            path = path.with_name(f"{PREFIX}{name}-{number}{SUFFIX}")
        os.rename(unfinished, path)
        directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return path

    def _remove_oldest(self, newest: Path) -> None:
        """Removes the oldest captures while there are too many."""
        found = [(path.stat().st_mtime_ns, path.name, path) for path in self._directory.glob(f"{PREFIX}*{SUFFIX}")]
        found.sort()
        sizes = {path: path.stat().st_size for _, _, path in found}
        for _, _, path in found:
            if path == newest or (len(sizes) <= self._limits.most_files and sum(sizes.values()) <= self._limits.most_bytes):
                return
            path.unlink()
            del sizes[path]
            evictions.add("captures of findings")
