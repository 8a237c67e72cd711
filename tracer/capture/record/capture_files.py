# SPDX-License-Identifier: Apache-2.0
"""The SQLite files of a capture: made for their owner alone, one after another, or one that forgets its oldest batches."""

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
from typing import Any

from tracer.capture.format.codec import pack
from tracer.capture.format.schema import APPLICATION, TABLES, VERSION, Record, crc
from tracer.capture.record.carry_over import CarryOver
from tracer.errors import OutputNotWritten
from tracer.util.new_file import fresh, intruder

BUSY_SECONDS = 5.0
"""How long a commit waits for somebody who reads the file."""
PAGE = 4096
BESIDE = ("-journal", "-wal")
"""Files beside a capture that SQLite obeys when they are not empty. Empty ones of ours keep both names from everybody else."""
REPEATED = "repeated"
"""In `meta`: with how many records a file begins that stand in those before it, too."""
SHARE = 8
"""A ring that is full forgets this part of itself at once."""


@dataclass(frozen=True)
class RotationLimits:
    """How much is kept. ring: bytes of one file, 0 = no limit. rotate, seconds: a file so large or old has a successor."""

    ring: int = 0
    rotate: int = 0
    seconds: float = 0

    @property
    def several(self) -> bool:
        return bool(self.rotate or self.seconds)


class CaptureFiles:
    """The file that is being written. path: of the first; with successors each has a number: night.k8st, night.2.k8st ...

    The first is made here, so that what is wrong is said early. Raises OutputNotWritten.
    """

    def __init__(self, path: Path, sizes: RotationLimits = RotationLimits()) -> None:
        self._path, self.sizes = path, sizes
        self._meta: dict[str, Any] = {}
        self._standing = CarryOver()
        self.names: list[Path] = []
        self._connection: sqlite3.Connection | None = None
        self._lock = -1
        self._fresh = False
        self._began = 0.0
        try:
            self._make()
        except (OSError, sqlite3.Error) as e:
            why = (e.strerror if isinstance(e, OSError) else None) or str(e)
            raise OutputNotWritten(f"The capture {path} cannot be made: {why}.") from e

    def describe(self, meta: dict[str, Any]) -> None:
        """What never changes in this run; to be called before anything is inserted."""
        self._meta = meta | {REPEATED: 0}
        self._meta["parts"] = len(self._meta) + 1

    def _make(self) -> None:
        path = self._path
        if self.names:
            path = path.with_name(f"{path.stem}.{len(self.names) + 1}{path.suffix}")
        who = intruder(path.parent)
        if who:
            raise PermissionError(errno.EPERM, f"others may change what is beside it ({who}); choose a directory of your own")
        os.close(fresh(path))
        try:
            self._lock = _occupy(path)
            # SQLite's connections belong to a thread: the writer's opens its own.
            with closing(self._open(path)) as connection:
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
                connection.executescript(TABLES)
        except (OSError, sqlite3.Error):
            self._vacate(path)
            path.unlink()
            raise
        self._connection, self._fresh, self._began = None, True, time.monotonic()
        self.names.append(path)

    def _vacate(self, path: Path) -> None:
        """The names beside a file that is complete are free again."""
        if self._lock >= 0:
            for suffix in BESIDE:
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1

    @staticmethod
    def _open(path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        connection.execute(f"PRAGMA page_size = {PAGE}")
        # What is committed survives a loss of power. The journal is our own file, and stays: nobody else can have one there.
        connection.execute("PRAGMA synchronous = FULL")
        if connection.execute("PRAGMA journal_mode = TRUNCATE").fetchone() != ("truncate",):
            connection.close()
            raise sqlite3.OperationalError("SQLite keeps no journal as it was asked to")
        return connection

    def insert(self, records: list[tuple[Any, ...]], batch: tuple[Any, ...] | None) -> None:
        """One transaction. Raises sqlite3.Error, OSError; then nothing of it is there."""
        if self._connection and self._due():
            self._next()
        connection = self._connection = self._connection or self._open(self.names[-1])
        self._within(lambda: self._put(records, batch))
        self._fresh = False
        for record in records if self.sizes.several else ():
            if record[1] != Record.GAP:
                self._standing.feed(record)
        if self.sizes.ring and self._size(connection) > self.sizes.ring - self.sizes.ring // SHARE:
            # What was written is written; what cannot be forgotten now is forgotten later.
            with suppress(sqlite3.Error):
                self._within(self._forget)

    def _within(self, work: Callable[[], None]) -> None:
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

    def _put(self, records: list[tuple[Any, ...]], batch: tuple[Any, ...] | None) -> None:
        connection = self._connection
        assert connection
        if self._fresh:
            standing = self._standing.records()
            meta = self._meta | {REPEATED: len(standing)}
            _fill("meta", connection, [(name, pack(value)) for name, value in meta.items()])
            records = standing + records
        _fill("records", connection, records)
        _fill("batches", connection, [batch] if batch else [])

    @staticmethod
    def _size(connection: sqlite3.Connection) -> int:
        """Bytes in use."""
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        (free,) = connection.execute("PRAGMA freelist_count").fetchone()
        return int(pages - free) * PAGE

    def _due(self) -> bool:
        sizes = self.sizes
        old = bool(sizes.seconds) and time.monotonic() - self._began >= sizes.seconds
        return old or (bool(sizes.rotate) and self.names[-1].stat().st_size >= sizes.rotate)

    def _next(self) -> None:
        """The next file begins."""
        self.close()
        self._connection = None
        self._make()

    def _forget(self) -> None:
        """The oldest batches go, and what only they needed."""
        connection = self._connection
        assert connection
        rows = connection.execute("SELECT seq, turn, length(slots) + length(turns) FROM batches ORDER BY seq").fetchall()
        goal, freed, first = self.sizes.ring // SHARE, 0, 0
        for seq, turn, size in rows[:-1]:
            first = turn
            if freed >= goal:
                break
            connection.execute("DELETE FROM batches WHERE seq = ?", (seq,))
            freed += size + PAGE
        for statement in FORGET:
            connection.execute(statement, {"first": first, "readings": 16})

    def discard(self) -> None:
        """Nothing was recorded: the file goes."""
        self.close()
        for path in self.names:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """No file is written any more."""
        if self._connection:
            self._connection.close()
        self._vacate(self.names[-1])


def _occupy(path: Path) -> int:
    """Takes the names beside a capture; gives a descriptor with a lock, which tells readers that it is written. OSError."""
    taken: list[tuple[Path, int]] = []
    try:
        for suffix in BESIDE:
            name = path.with_name(path.name + suffix)
            try:
                fd = fresh(name)
            except FileExistsError:
                fd = _left(name)
            taken.append((name, fd))
        fcntl.flock(taken[-1][1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        for name, fd in taken:
            name.unlink()
            os.close(fd)
        raise
    os.close(taken[0][1])
    return taken[-1][1]


def _left(name: Path) -> int:
    """What a run of ours that was killed has left, and nobody else: empty. Raises OSError for anything else."""
    found = os.lstat(name)
    if not stat.S_ISREG(found.st_mode) or found.st_size or found.st_uid != os.geteuid() or found.st_nlink > 1:
        raise FileExistsError(errno.EEXIST, f"{name} is there already, and SQLite would take it for a part of the capture")
    return os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)


COLUMNS = {
    "meta": "name, value",
    "records": "turn, kind, key, body",
    "batches": "turn, began, ended, events, turns, slots",
}
"""Of each table, as they are given; crc comes behind them."""


def _fill(table: str, connection: sqlite3.Connection, rows: list[tuple[Any, ...]]) -> None:
    places = ", ".join("?" * (COLUMNS[table].count(",") + 2))
    connection.executemany(f"INSERT INTO {table} ({COLUMNS[table]}, crc) VALUES ({places})", [(*row, crc(row)) for row in rows])


FORGET = (
    "DELETE FROM records WHERE turn < :first AND kind IN ('loss', 'note', 'gap', 'change', 'conntrack')",
    "DELETE FROM records WHERE turn < :first AND kind IN ('answer', 'sandboxes') AND seq NOT IN"
    " (SELECT max(seq) FROM records WHERE turn < :first AND kind IN ('answer', 'sandboxes') GROUP BY kind, key)",
    "DELETE FROM records WHERE seq IN (SELECT seq FROM (SELECT seq, row_number() OVER (PARTITION BY kind,"
    " CASE kind WHEN 'nft' THEN substr(key, 1, instr(key, ' ')) ELSE key END ORDER BY seq DESC) AS age FROM records"
    " WHERE turn < :first AND kind IN ('nft', 'reading')) WHERE age > :readings)",
    "DELETE FROM records WHERE kind = 'ruleset' AND turn < (SELECT min(turn) - 1000 FROM records WHERE kind = 'reading')",
    # An object's later change tells all of it; so does a new list of its kind.
    "DELETE FROM records WHERE kind = 'objects' AND turn < :first AND instr(key, ' ') AND seq NOT IN"
    " (SELECT max(seq) FROM records WHERE turn < :first AND kind = 'objects' GROUP BY key)",
    "DELETE FROM records AS old WHERE kind = 'objects' AND turn < :first AND EXISTS (SELECT 1 FROM records AS new WHERE"
    " new.kind = 'objects' AND new.turn < :first AND new.seq > old.seq AND instr(new.key, ' ') = 0 AND new.key != ''"
    " AND (old.key = new.key OR substr(old.key, 1, length(new.key) + 1) = new.key || ' '))",
)
"""What a ring no longer needs when its first batch begins with turn :first."""
