# SPDX-License-Identifier: Apache-2.0
"""Opens a capture and gives what is in it, row by row: never more in memory than a batch.

Of a damaged one, whatever can be read: rows are fetched one after another by their number, and each has its check sum. Where
SQLite finds a page damaged or missing, the rows behind it are tried; what could not be read is counted and said.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tracer.capture.format import migrations, record_checks, schema, sqlite_journal
from tracer.capture.format.codec import MalformedRecord, unpack
from tracer.capture.format.migrations import RecordRow
from tracer.capture.format.record_layout import RecordLayout
from tracer.capture.format.schema import APPLICATION, VERSION, Record, crc
from tracer.capture.format.type_checks import fits
from tracer.capture.record.capture_files import COLUMNS, REPEATED
from tracer.errors import CaptureUnreadable, NewerCapture
from tracer.util.new_file import fresh

MAGIC = b"SQLite format 3\0"
MOST_MISSES = 64
"""Rows that cannot be read in a row before the rest of a table is given up."""
AT_ONCE = 64
"""Records fetched by one question."""
LEAST_ROW, MOST_ROW = 1 << 20, 1 << 30
"""Bytes of a row: as many as there are in the file, within these."""
LEAST_STEPS, STEPS, AT_ONCE_STEPS = 1_000_000, 4, 10_000
"""Of SQLite's machine that a statement may take, those for each byte of the file, and after how many they are counted."""
DAMAGE = (MalformedRecord, KeyError, TypeError, ValueError, AttributeError, IndexError)
"""What it looks like when a value is not what it should be."""


@dataclass(frozen=True)
class BatchChunk:
    """Some turns. turn: number of the first. turns: (now, slots, last) of each. slots: of all, as rows; events: in them."""

    turn: int
    began: int
    ended: int
    events: int
    turns: tuple[tuple[int, int, bool], ...]
    slots: npt.NDArray[np.uint8]


class CaptureReader:
    """One file. meta: as tracer/capture/record/environment.py wrote it. missed: rows that could not be read, so far.

    Raises CaptureUnreadable, NewerCapture. A context manager.
    """

    def __init__(self, path: str) -> None:
        self.path, self.missed = path, 0
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        fd = self._regular(Path(path))
        try:
            self.version = self._check(Path(path), fd)
            self._contiguous = True
            self._connection = self._open(Path(path), fd)
            self._guard(os.fstat(fd))
            self.meta = self._meta()
            # A ring forgets.
            self._contiguous = not self.meta.get("ring")
            self.layout = RecordLayout(self.meta["layout"])
        except (sqlite3.Error, OSError) as e:
            self.close()
            raise CaptureUnreadable(f"Nothing of {path} can be read: {' '.join(str(e).split())}.") from e
        except UnicodeDecodeError as e:
            # SQLite quotes the damaged schema in its error, and Python cannot read that.
            self.close()
            raise CaptureUnreadable(f"Nothing of {path} can be read: its schema is damaged.") from e
        except MalformedRecord as e:
            self.close()
            raise CaptureUnreadable(f"Nothing of {path} can be used: {e}.") from e
        except KeyError as e:
            self.close()
            raise CaptureUnreadable(f"Nothing of {path} can be used: what it says of itself is missing ({e}).") from e
        finally:
            os.close(fd)

    @staticmethod
    def _regular(path: Path) -> int:
        """A descriptor of the file. Raises CaptureUnreadable, also for what would never end or make the reader wait."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as e:
            raise CaptureUnreadable(f"{path} cannot be read: {e.strerror}.") from e
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise CaptureUnreadable(f"{path} is no regular file.")

    @staticmethod
    def _check(path: Path, fd: int) -> int:
        """The version of the format. Raises CaptureUnreadable, NewerCapture."""
        try:
            head = os.pread(fd, 100, 0)
        except OSError as e:
            raise CaptureUnreadable(f"{path} cannot be read: {e.strerror}.") from e
        if not head:
            raise CaptureUnreadable(f"{path} is empty.")
        if head[: len(MAGIC)] != MAGIC[: len(head)]:
            raise CaptureUnreadable(f"{path} is no capture of k8snet-trace.")
        if len(head) < 100:
            raise CaptureUnreadable(f"{path} ends before it begins: {len(head)} bytes.")
        version, application = int.from_bytes(head[60:64], "big"), int.from_bytes(head[68:72], "big")
        if application != APPLICATION:
            raise CaptureUnreadable(f"{path} is no capture of k8snet-trace, but another SQLite file.")
        if version > VERSION:
            raise NewerCapture(
                f"{path} was written by a newer k8snet-trace (format {version}, this one reads {VERSION}): update this one."
            )
        if not version:
            raise CaptureUnreadable(f"{path} does not say which version of a capture it is.")
        return version

    def _open(self, path: Path, fd: int) -> sqlite3.Connection:
        """The file, immutable: SQLite looks for nothing beside it, plays no journal, and takes no lock.

        Where a transaction was cut short, or a run is writing the file, it is a copy in which that has been undone.
        """
        owner = os.fstat(fd).st_uid
        beside = sqlite_journal.beside(path, "-journal", owner)
        try:
            if sqlite_journal.is_written(path, owner) or (beside is not None and os.fstat(beside).st_size):
                self._scratch = tempfile.TemporaryDirectory(prefix="k8snet-trace-")
                path = Path(self._scratch.name) / "capture"
                copy = fresh(path)
                try:
                    sqlite_journal.copy(fd, copy)
                    if beside is not None:
                        sqlite_journal.undo(beside, copy)
                finally:
                    os.close(copy)
        finally:
            if beside is not None:
                os.close(beside)
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA query_only = 1")
        connection.execute("PRAGMA cell_size_check = 1")
        return connection

    def _guard(self, found: os.stat_result) -> None:
        """Whatever is in the file, no statement runs or grows without end. Raises MalformedRecord for tables that are none.

        A view can be endless, a generated column of any length, and a tree of pages can lead to the same page again and again.
        """
        there = min(found.st_size, found.st_blocks * 512)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(max(there, LEAST_ROW), MOST_ROW))
        self._most_steps = (LEAST_STEPS + there * STEPS) // AT_ONCE_STEPS
        self._steps = 0
        self._connection.set_progress_handler(self._too_long, AT_ONCE_STEPS)
        wanted = [" ".join(text.split()) for text in schema.TABLES.strip().rstrip(";").split(";")]
        columns = "CAST(type AS BLOB), CAST(sql AS BLOB)"
        rows = self._execute(f"SELECT {columns} FROM sqlite_schema WHERE name IN ('meta', 'records', 'batches')")
        # As bytes: damage may be no text, and then SQLite would quote it.
        found_there = sorted((kind, b" ".join(text.split())) for kind, text in rows if isinstance(text, bytes))
        if found_there != sorted((b"table", text.encode()) for text in wanted):
            raise MalformedRecord("its tables are not those of a capture")

    def _too_long(self) -> bool:
        self._steps += 1
        return self._steps > self._most_steps

    def _execute(self, text: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """All rows of a statement. Raises sqlite3.Error, also for one that does not end."""
        self._steps = 0
        return self._connection.execute(text, values).fetchall()

    def _meta(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in self._rows("meta", AT_ONCE):
            try:
                found[str(name)] = record_checks.meta(str(name), migrations.meta(self.version, str(name), unpack(value)))
            except DAMAGE:
                self.missed += 1
        self.missed += found.get("parts") != len(found)
        if not found:
            raise MalformedRecord("it does not say what was recorded")
        return found

    def _rows(self, table: str, at_once: int, after: int = 0) -> Iterator[tuple[Any, ...]]:
        """The rows of a table behind this one in order; those that cannot be read are counted and passed over."""
        misses = 0
        text = f"SELECT seq, crc, {COLUMNS[table]} FROM {table} WHERE seq > ? ORDER BY seq LIMIT ?"
        while misses < MOST_MISSES:
            try:
                rows = self._execute(text, (after, at_once if not misses else 1))
            except (sqlite3.Error, OverflowError, ValueError):
                if not misses and at_once > 1:
                    # One by one from here, to get what stands before the damage.
                    at_once = 1
                    continue
                misses, after, self.missed = misses + 1, after + 1, self.missed + 1
                continue
            if not rows:
                return
            for row in rows:
                if not isinstance(row[0], int) or row[0] <= after:
                    # A page that was cut off reads as zeros.
                    self.missed += 1
                    return
                self.missed += self._contiguous and row[0] != after + 1
                after, misses = row[0], 0
                if row[1] == crc(row[2:]):
                    yield row[2:]
                else:
                    self.missed += 1

    def records(self, repeated: bool = True) -> Iterator[RecordRow]:
        """(turn, kind, key, body as plain JSON) of each record, in the order they were written.

        repeated: also those that the file repeats of the ones before it.
        """
        last, known = "", self.meta.get(REPEATED, 0)
        for turn, kind, key, body in self._rows("records", AT_ONCE, 0 if repeated or not isinstance(known, int) else known):
            try:
                if type(turn) is not int:
                    raise MalformedRecord("a record of no turn")
                row = migrations.record(self.version, (turn, str(kind), str(key), unpack(body)))
                record_checks.record(row[1], row[3])
            except DAMAGE:
                self.missed += 1
                continue
            last = row[1]
            yield row
        # A run that has ended says so last.
        self.missed += last != Record.END and self.ended() is not None

    def batches(self) -> Iterator[BatchChunk]:
        """The batches in order. At the end it is compared with what the run said of its last turn."""
        last = 0
        for turn, began, ended, events, turns, slots in self._rows("batches", 1):
            try:
                made = self._batch(turn, began, ended, events, unpack(turns), slots)
            except DAMAGE:
                self.missed += 1
                continue
            last = turn + len(made.turns) - 1
            yield made
        ended = self.ended()
        self.missed += bool(ended and last < ended[1])

    def _batch(self, turn: Any, began: Any, ended: Any, events: Any, turns: Any, slots: object) -> BatchChunk:
        """A stored batch. Raises MalformedRecord, and what else damage raises."""
        if not fits([turn, began, ended, events, turns], tuple[int, int, int, int, list[tuple[int, int, int]]], listed=True):
            raise MalformedRecord("a batch of another form")
        if any(count < 0 for _, count, _ in turns):
            raise MalformedRecord("a turn of less than nothing")
        told = tuple((now, count, bool(last)) for now, count, last in turns)
        return BatchChunk(turn, began, ended, events, told, self.layout.unpack(slots, sum(count for _, count, _ in told)))

    def spans(self) -> list[tuple[int, int, int]]:
        """(began, ended, events) of all batches: how much there is to read."""
        try:
            found = self._execute("SELECT began, ended, events FROM batches ORDER BY seq")
        except sqlite3.Error:
            return []
        return [row for row in found if all(isinstance(v, int) for v in row)]

    def ended(self) -> tuple[float, int] | None:
        """How many seconds the run took, and the number of its last turn; None when it did not end as it should."""
        try:
            rows = self._execute("SELECT body FROM records WHERE kind = 'end' ORDER BY seq DESC LIMIT 1")
            if not rows:
                return None
            ((body,),) = rows
            seconds, turn = record_checks.record(Record.END, unpack(body))
            return float(seconds), turn
        except (sqlite3.Error, *DAMAGE):
            return None

    def close(self) -> None:
        if hasattr(self, "_connection"):
            self._connection.close()
        if self._scratch:
            self._scratch.cleanup()

    def __enter__(self) -> CaptureReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
