# SPDX-License-Identifier: Apache-2.0
"""Opens a capture and reads it row by row: never more than one chunk is in memory.

Of a damaged capture it reads all readable rows: rows are fetched one after another by their number, and each has a check sum.
Where SQLite finds a damaged or missing page, the following rows are tried. Unreadable rows are counted and reported.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tracer.capture.format import migrations, record_checks, schema, sqlite_journal
from tracer.capture.format.codec import MalformedRecord, unpack
from tracer.capture.format.migrations import RecordRow
from tracer.capture.format.record_layout import RecordLayout
from tracer.capture.format.schema import APPLICATION_ID, VERSION, Record, is_sound
from tracer.capture.format.type_checks import fits
from tracer.capture.record.capture_files import COLUMNS, REPEATED
from tracer.errors import CaptureUnreadable, NewerCapture
from tracer.events.record import Slots
from tracer.util.new_file import fresh

MAGIC = b"SQLite format 3\0"
MAX_MISSES = 64
"""Number of consecutive unreadable rows after which the rest of a table is skipped."""
ROWS_AT_ONCE = 64
"""Rows fetched by one statement."""
MIN_ROW_BYTES, MAX_ROW_BYTES = 1 << 20, 1 << 30
"""Range of the maximum length of a row, bytes. Within it, the maximum is the length of the file."""
MIN_STEPS, STEPS_PER_BYTE, STEP_INTERVAL = 1_000_000, 4, 10_000
"""Steps of SQLite's virtual machine: maximum of a statement, addition per byte of the file, interval of counting."""
DAMAGE_ERRORS = (MalformedRecord, KeyError, TypeError, ValueError, AttributeError, IndexError)
"""Exceptions that a damaged value can cause."""


@dataclass(frozen=True)
class BatchChunk:
    """Consecutive batches: one row of the table `batches`.

    Attributes:
        first_batch: number of the first batch.
        began: time of the first batch, ns since the epoch.
        ended: time of the last batch, ns since the epoch.
        events: number of ring records in the slots.
        batches: (now, number of slots, last) of each batch.
        slots: (number of slots, slot length), of all batches.
    """

    first_batch: int
    began: int
    ended: int
    events: int
    batches: tuple[tuple[int, int, bool], ...]
    slots: Slots


class BatchSpan(NamedTuple):
    """The batches of a chunk.

    Attributes:
        first: Number of the first batch.
        after: Number after that of the last batch.
        began: Time of the first batch, ns since the epoch.
        ended: Time of the last batch, ns since the epoch.
    """

    first: int
    after: int
    began: int
    ended: int


class CaptureReader:
    """Reads one file. A context manager. Raises CaptureUnreadable, NewerCapture.

    Attributes:
        path: the file.
        meta: values that do not change in a run, as tracer/capture/record/environment.py wrote them.
        missed: number of rows that could not be read so far.
        version: version of the format.
        layout: layout of the file's events.
    """

    def __init__(self, path: str) -> None:
        self.path, self.missed = path, 0
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        fd = self._open_regular(Path(path))
        try:
            self.version = self._read_version(Path(path), fd)
            self._contiguous = True
            self._connection = self._open(Path(path), fd)
            self._limit_statements(os.fstat(fd))
            self.meta = self._read_meta()
            # A ring has deleted rows.
            self._contiguous = not self.meta.get("ring")
            self.layout = RecordLayout(self.meta["layout"])
        except (sqlite3.Error, OSError) as e:
            self.close()
            raise CaptureUnreadable(f"Nothing of {path} can be read: {' '.join(str(e).split())}.") from e
        except UnicodeDecodeError as e:
            # SQLite quotes the damaged schema in its error, and Python cannot decode that.
            self.close()
            raise CaptureUnreadable(f"Nothing of {path} can be read: its schema is damaged.") from e
        except MalformedRecord as e:
            self.close()
            raise CaptureUnreadable(f"Nothing of {path} can be used: {e}.") from e
        except KeyError as e:
            self.close()
            raise CaptureUnreadable(f"Nothing of {path} can be used: its description of the run is incomplete ({e}).") from e
        finally:
            os.close(fd)

    @staticmethod
    def _open_regular(path: Path) -> int:
        """A descriptor of the file. Raises CaptureUnreadable, also if it is not a regular file: it may block or never end."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as e:
            raise CaptureUnreadable(f"{path} cannot be read: {e.strerror}.") from e
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
        raise CaptureUnreadable(f"{path} is no regular file.")

    @staticmethod
    def _read_version(path: Path, fd: int) -> int:
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
        if application != APPLICATION_ID:
            raise CaptureUnreadable(f"{path} is no capture of k8snet-trace, but another SQLite file.")
        if version > VERSION:
            raise NewerCapture(
                f"{path} was written by a newer k8snet-trace (format {version}, this one reads {VERSION}): update this one."
            )
        if not version:
            raise CaptureUnreadable(f"{path} does not say which version of a capture it is.")
        return version

    def _open(self, path: Path, fd: int) -> sqlite3.Connection:
        """Opens the file as immutable: SQLite looks for no files beside it, rolls back no journal, and takes no lock.

        If a transaction was interrupted, or a run is writing the file, it opens a copy in which the transaction is rolled back.
        """
        owner = os.fstat(fd).st_uid
        beside = sqlite_journal.open_beside(path, "-journal", owner)
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

    def _limit_statements(self, status: os.stat_result) -> None:
        """Limits the time and memory of every statement, for any content. Raises MalformedRecord for unexpected tables.

        A malicious file can have an endless view, a generated column of any length, and a tree of pages with a loop.
        """
        stored_bytes = min(status.st_size, status.st_blocks * 512)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(max(stored_bytes, MIN_ROW_BYTES), MAX_ROW_BYTES))
        self._max_steps = (MIN_STEPS + stored_bytes * STEPS_PER_BYTE) // STEP_INTERVAL
        self._steps = 0
        self._connection.set_progress_handler(self._too_long, STEP_INTERVAL)
        expected = [" ".join(text.split()) for text in schema.TABLES.strip().rstrip(";").split(";")]
        columns = "CAST(type AS BLOB), CAST(sql AS BLOB)"
        rows = self._execute(f"SELECT {columns} FROM sqlite_schema WHERE name IN ('meta', 'records', 'batches')")
        # As bytes: damaged text may be undecodable, and SQLite would quote it in an error.
        found = sorted((kind, b" ".join(text.split())) for kind, text in rows if isinstance(text, bytes))
        if found != sorted((b"table", text.encode()) for text in expected):
            raise MalformedRecord("its tables are not those of a capture")

    def _too_long(self) -> bool:
        self._steps += 1
        return self._steps > self._max_steps

    def _execute(self, text: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """All rows of a statement. Raises sqlite3.Error, also when the statement takes too many steps."""
        self._steps = 0
        return self._connection.execute(text, values).fetchall()

    def _read_meta(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in self._rows("meta", ROWS_AT_ONCE):
            try:
                found[str(name)] = record_checks.meta(str(name), migrations.meta(self.version, str(name), unpack(value)))
            except DAMAGE_ERRORS:
                self.missed += 1
        self.missed += found.get("parts") != len(found)
        if not found:
            raise MalformedRecord("it does not say what was recorded")
        return found

    def _rows(self, table: str, at_once: int, after: int = 0) -> Iterator[tuple[Any, ...]]:
        """Yields the rows of a table after row `after`, in order. Unreadable rows are counted and skipped."""
        misses = 0
        text = f"SELECT seq, crc, {COLUMNS[table]} FROM {table} WHERE seq > ? ORDER BY seq LIMIT ?"
        while misses < MAX_MISSES:
            try:
                rows = self._execute(text, (after, at_once if not misses else 1))
            except (sqlite3.Error, OverflowError, ValueError):
                if not misses and at_once > 1:
                    # One by one from here, to read the rows before the damage.
                    at_once = 1
                    continue
                misses, after, self.missed = misses + 1, after + 1, self.missed + 1
                continue
            if not rows:
                return
            for row in rows:
                if not isinstance(row[0], int) or row[0] <= after:
                    # A truncated page reads as zeros.
                    self.missed += 1
                    return
                self.missed += self._contiguous and row[0] != after + 1
                after, misses = row[0], 0
                if is_sound(table, row[2:], row[1], self.version):
                    yield row[2:]
                else:
                    self.missed += 1

    def records(self, repeated: bool = True) -> Iterator[RecordRow]:
        """Yields (batch number, kind, key, body as plain JSON) of each record, in the order of writing.

        Args:
            repeated: also the records that the file repeats from earlier files.
        """
        last_kind, repeated_count = "", self.meta.get(REPEATED, 0)
        after = 0 if repeated or not isinstance(repeated_count, int) else repeated_count
        for batch_number, kind, key, body in self._rows("records", ROWS_AT_ONCE, after):
            try:
                if type(batch_number) is not int:
                    raise MalformedRecord("a record without a batch number")
                row = migrations.record(self.version, (batch_number, str(kind), str(key), unpack(body)))
                record_checks.record(row[1], row[3])
            except DAMAGE_ERRORS:
                self.missed += 1
                continue
            last_kind = row[1]
            yield row
        # The END record of a run comes last.
        self.missed += last_kind != Record.END and self.ended() is not None

    def chunks(self) -> Iterator[BatchChunk]:
        """Yields the chunks in order. At the end the last batch is compared with the number in the run's END record."""
        last = 0
        for first_batch, began, ended, events, turns, slots in self._rows("batches", 1):
            try:
                chunk = self._decode_chunk(first_batch, began, ended, events, unpack(turns), slots)
            except DAMAGE_ERRORS:
                self.missed += 1
                continue
            last = first_batch + len(chunk.batches) - 1
            yield chunk
        ended = self.ended()
        self.missed += bool(ended and last < ended[1])

    def _decode_chunk(self, first_batch: Any, began: Any, ended: Any, events: Any, turns: Any, slots: object) -> BatchChunk:
        """Decodes a stored chunk. Raises MalformedRecord and the other DAMAGE_ERRORS."""
        form = tuple[int, int, int, int, list[tuple[int, int, int]]]
        if not fits([first_batch, began, ended, events, turns], form, is_json=True):
            raise MalformedRecord("a batch of another form")
        if any(count < 0 for _, count, _ in turns):
            raise MalformedRecord("a batch of negative length")
        batches = tuple((now, count, bool(last)) for now, count, last in turns)
        rows = self.layout.unpack(slots, sum(count for _, count, _ in batches))
        return BatchChunk(first_batch, began, ended, events, batches, rows)

    def spans(self) -> list[tuple[int, int, int]]:
        """(began, ended, events) of all chunks, to estimate the work."""
        try:
            found = self._execute("SELECT began, ended, events FROM batches ORDER BY seq")
        except sqlite3.Error:
            return []
        return [row for row in found if all(isinstance(v, int) for v in row)]

    def batch_spans(self) -> Iterator[BatchSpan]:
        """Yields which batches each chunk has, without their contents. Unreadable chunks are counted and skipped."""
        for first_batch, began, ended, _, turns, _ in self._rows("batches", 1):
            try:
                found = unpack(turns)
                if not fits([first_batch, began, ended, found], tuple[int, int, int, list[Any]], is_json=True):
                    raise MalformedRecord("a batch of another form")
            except DAMAGE_ERRORS:
                self.missed += 1
                continue
            yield BatchSpan(first_batch, first_batch + len(found), began, ended)

    def ended(self) -> tuple[float, int] | None:
        """Duration of the run in seconds, and number of its last batch; None when the run did not end normally."""
        found = self._last_record(Record.END)
        return (float(found[0]), found[1]) if found else None

    def clock(self) -> tuple[int, int] | None:
        """The last known [offset, error] of a record of kind CLOCK, ns; None = the clock was not compared with another."""
        found = self._last_record(Record.CLOCK)
        return (found[0], found[1]) if found else None

    def _last_record(self, kind: Record) -> Any:
        """The body of the last record of a kind; None = there is none, or it cannot be read."""
        try:
            rows = self._execute("SELECT body FROM records WHERE kind = ? ORDER BY seq DESC LIMIT 1", (kind.value,))
            return record_checks.record(kind, unpack(rows[0][0])) if rows else None
        except (sqlite3.Error, *DAMAGE_ERRORS):
            return None

    @property
    def host(self) -> Mapping[str, str]:
        """The machine that was traced: `name`, `boot`, `machine`, `kernel`, as far as they are known."""
        host: Mapping[str, str] = self.meta.get("host", {})
        return host

    def close(self) -> None:
        if hasattr(self, "_connection"):
            self._connection.close()
        if self._scratch:
            self._scratch.cleanup()

    def __enter__(self) -> CaptureReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
