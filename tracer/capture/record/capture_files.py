# SPDX-License-Identifier: Apache-2.0
"""The SQLite files of a capture: readable by their owner only; one file, several in sequence, or a ring without old batches."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tracer.capture.format.codec import pack
from tracer.capture.format.schema import APPLICATION_ID, TABLES, VERSION, Record, crc
from tracer.capture.record.carry_over import CarryOver
from tracer.errors import OutputNotWritten
from tracer.util.new_file import fresh, intruder

BUSY_SECONDS = 5.0
"""Maximum time that a commit waits for a reader of the file, seconds."""
PAGE_BYTES = 4096
SIDE_SUFFIXES = ("-journal", "-wal")
"""Suffixes of files beside a capture. SQLite applies such a file if it is not empty. This program creates both, empty, so that
no other user can."""
REPEATED = "repeated"
"""Name in `meta`: number of records at the beginning of a file that repeat records of earlier files."""
RING_SHARE = 8
"""A full ring drops 1/RING_SHARE of its size at a time."""


@dataclass(frozen=True)
class RotationLimits:
    """Limits of the capture's files.

    Attributes:
        ring: maximum size of the only file, bytes; 0 = no limit.
        rotate: size from which the next file begins, bytes; 0 = no limit.
        seconds: age from which the next file begins, seconds; 0 = no limit.
    """

    ring: int = 0
    rotate: int = 0
    seconds: float = 0

    @property
    def has_successors(self) -> bool:
        return bool(self.rotate or self.seconds)


class CaptureTarget(Protocol):
    """What takes a capture: files, or a stream to another machine."""

    names: list[Path]
    limits: RotationLimits

    def describe(self, meta: dict[str, Any]) -> None: ...
    def insert(self, records: list[tuple[Any, ...]], batch: tuple[Any, ...] | None) -> None: ...
    def discard(self) -> None: ...
    def close(self) -> None: ...


class CaptureFiles:
    """Writes the files of a capture. The first file is created at once, so that errors appear early. Raises OutputNotWritten.

    Args:
        path: the first file. Further files have a number: night.k8st, night.2.k8st ...
        limits: when a file ends.
        carried: records from before the first file, which it begins with; None = none.

    Attributes:
        names: the files, oldest first.
    """

    def __init__(self, path: Path, sizes: RotationLimits = RotationLimits(), carried: CarryOver | None = None) -> None:
        self._path, self.limits = path, sizes
        self._meta: dict[str, Any] = {}
        self._carry_over = carried or CarryOver()
        self.names: list[Path] = []
        self._connection: sqlite3.Connection | None = None
        self._lock = -1
        self._is_new = False
        self._began = 0.0
        try:
            self._create()
        except (OSError, sqlite3.Error) as e:
            reason = (e.strerror if isinstance(e, OSError) else None) or str(e)
            raise OutputNotWritten(f"The capture {path} cannot be made: {reason}.") from e

    def describe(self, meta: dict[str, Any]) -> None:
        """Sets the values that do not change in the run. Call it before the first `insert`."""
        self._meta = meta | {REPEATED: 0}
        self._meta["parts"] = len(self._meta) + 1

    def _create(self) -> None:
        path = self._path
        if self.names:
            path = path.with_name(f"{path.stem}.{len(self.names) + 1}{path.suffix}")
        others = intruder(path.parent)
        if others:
            why = f"others may change what is beside it ({others}); choose a directory of your own"
            raise PermissionError(errno.EPERM, why)
        os.close(fresh(path))
        try:
            self._lock = _occupy(path)
            # A connection of SQLite belongs to one thread: the writer's thread opens its own.
            with closing(self._open(path)) as connection:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
                connection.executescript(TABLES)
        except (OSError, sqlite3.Error):
            self._vacate(path)
            path.unlink()
            raise
        self._connection, self._is_new, self._began = None, True, time.monotonic()
        self.names.append(path)

    def _vacate(self, path: Path) -> None:
        """Removes the files beside a complete capture file."""
        if self._lock >= 0:
            for suffix in SIDE_SUFFIXES:
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1

    @staticmethod
    def _open(path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        # Committed data survives a power failure. The journal file is ours and is kept, so no other user can create it.
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute("PRAGMA journal_mode = TRUNCATE").fetchone() != ("truncate",):
            connection.close()
            raise sqlite3.OperationalError("SQLite does not use the requested journal mode")
        return connection

    def insert(self, records: list[tuple[Any, ...]], batch: tuple[Any, ...] | None) -> None:
        """Writes records and a chunk of batches in one transaction. Raises sqlite3.Error, OSError; then nothing is written."""
        if self._connection and self._is_due():
            self._start_next()
        connection = self._connection = self._connection or self._open(self.names[-1])
        self._transaction(lambda: self._insert_rows(records, batch))
        self._is_new = False
        for record in records if self.limits.has_successors else ():
            if record[1] != Record.GAP:
                self._carry_over.feed(record)
        if self.limits.ring and self._size(connection) > self.limits.ring - self.limits.ring // RING_SHARE:
            # The data is written. If the oldest batches cannot be dropped now, they are dropped later.
            with suppress(sqlite3.Error):
                self._transaction(self._drop_oldest)

    def _transaction(self, work: Callable[[], None]) -> None:
        connection = self._connection
        assert connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            work()
            connection.execute("COMMIT")
        except (sqlite3.Error, OSError):
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _insert_rows(self, records: list[tuple[Any, ...]], batch: tuple[Any, ...] | None) -> None:
        connection = self._connection
        assert connection
        if self._is_new:
            carried = self._carry_over.records()
            meta = self._meta | {REPEATED: len(carried)}
            _insert_into("meta", connection, [(name, pack(value)) for name, value in meta.items()])
            records = carried + records
        _insert_into("records", connection, records)
        _insert_into("batches", connection, [batch] if batch else [])

    @staticmethod
    def _size(connection: sqlite3.Connection) -> int:
        """Bytes in use."""
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        return int(pages - free) * PAGE_BYTES

    def _is_due(self) -> bool:
        limits = self.limits
        is_old = bool(limits.seconds) and time.monotonic() - self._began >= limits.seconds
        return is_old or (bool(limits.rotate) and self.names[-1].stat().st_size >= limits.rotate)

    def _start_next(self) -> None:
        """Begins the next file."""
        self.close()
        self._connection = None
        self._create()

    def _drop_oldest(self) -> None:
        """Drops the oldest chunks of a ring, and the records that only they needed."""
        connection = self._connection
        assert connection
        rows = connection.execute("SELECT seq, turn, length(slots) + length(turns) FROM batches ORDER BY seq").fetchall()
        target_bytes, freed_bytes, first = self.limits.ring // RING_SHARE, 0, 0
        for seq, first_batch, size in rows[:-1]:
            first = first_batch
            if freed_bytes >= target_bytes:
                break
            connection.execute("DELETE FROM batches WHERE seq = ?", (seq,))
            freed_bytes += size + PAGE_BYTES
        for statement in DROP_STATEMENTS:
            connection.execute(statement, {"first": first, "readings": 16})

    def discard(self) -> None:
        """Removes the files: nothing was recorded."""
        self.close()
        for path in self.names:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Ends the writing of files."""
        if self._connection:
            self._connection.close()
        self._vacate(self.names[-1])


def _occupy(path: Path) -> int:
    """Creates the files beside a capture. Returns a descriptor with a lock, which shows readers that the capture is being
    written. Raises OSError."""
    taken: list[tuple[Path, int]] = []
    try:
        for suffix in SIDE_SUFFIXES:
            name = path.with_name(path.name + suffix)
            try:
                fd = fresh(name)
            except FileExistsError:
                fd = _open_leftover(name)
            taken.append((name, fd))
        fcntl.flock(taken[-1][1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        for name, fd in taken:
            name.unlink()
            os.close(fd)
        raise
    os.close(taken[0][1])
    return taken[-1][1]


def _open_leftover(name: Path) -> int:
    """Opens an empty file that a killed run of the same user has left. Raises OSError for anything else."""
    found = os.lstat(name)
    if not stat.S_ISREG(found.st_mode) or found.st_size or found.st_uid != os.geteuid() or found.st_nlink > 1:
        raise FileExistsError(errno.EEXIST, f"{name} is there already, and SQLite would take it for a part of the capture")
    return os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)


COLUMNS = {
    "meta": "name, value",
    "records": "turn, kind, key, body",
    "batches": "turn, began, ended, events, turns, slots",
}
"""Columns of each table, in the order in which they are written; crc follows."""


def _insert_into(table: str, connection: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> None:
    places = ", ".join("?" * (COLUMNS[table].count(",") + 2))
    connection.executemany(f"INSERT INTO {table} ({COLUMNS[table]}, crc) VALUES ({places})", [(*row, crc(row)) for row in rows])


DROP_STATEMENTS = (
    "DELETE FROM records WHERE turn < :first AND kind IN ('loss', 'note', 'gap', 'change', 'conntrack')",
    "DELETE FROM records WHERE turn < :first AND kind IN ('answer', 'sandboxes') AND seq NOT IN"
    " (SELECT max(seq) FROM records WHERE turn < :first AND kind IN ('answer', 'sandboxes') GROUP BY kind, key)",
    "DELETE FROM records WHERE seq IN (SELECT seq FROM (SELECT seq, row_number() OVER (PARTITION BY kind,"
    " CASE kind WHEN 'nft' THEN substr(key, 1, instr(key, ' ')) ELSE key END ORDER BY seq DESC) AS age FROM records"
    " WHERE turn < :first AND kind IN ('nft', 'reading')) WHERE age > :readings)",
    "DELETE FROM records WHERE kind = 'ruleset' AND turn < (SELECT min(turn) - 1000 FROM records WHERE kind = 'reading')",
    # A later change of an object, or a new list of its kind, has all of its information.
    "DELETE FROM records WHERE kind = 'objects' AND turn < :first AND instr(key, ' ') AND seq NOT IN"
    " (SELECT max(seq) FROM records WHERE turn < :first AND kind = 'objects' GROUP BY key)",
    "DELETE FROM records AS old WHERE kind = 'objects' AND turn < :first AND EXISTS (SELECT 1 FROM records AS new WHERE"
    " new.kind = 'objects' AND new.turn < :first AND new.seq > old.seq AND instr(new.key, ' ') = 0 AND new.key != ''"
    " AND (old.key = new.key OR substr(old.key, 1, length(new.key) + 1) = new.key || ' '))",
)
"""Statements that delete the records that a ring no longer needs. :first is the number of its first batch."""
