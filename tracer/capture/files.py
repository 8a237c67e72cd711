"""The SQLite files of a capture: made for their owner alone, one after another, or one that forgets its oldest batches."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracer.capture.codec import pack
from tracer.capture.schema import APPLICATION, TABLES, VERSION, Record, crc
from tracer.capture.standing import Standing
from tracer.errors import NotWritten

BUSY_SECONDS = 5.0
"""How long a commit waits for somebody who reads the file."""
PAGE = 4096
REPEATED = "repeated"
"""In `meta`: with how many records a file begins that stand in those before it, too."""
SHARE = 8
"""A ring that is full forgets this part of itself at once."""


@dataclass(frozen=True)
class Sizes:
    """How much is kept. ring: bytes of one file, 0 = no limit. rotate, seconds: a file so large or old has a successor."""

    ring: int = 0
    rotate: int = 0
    seconds: float = 0

    @property
    def several(self) -> bool:
        return bool(self.rotate or self.seconds)


class Files:
    """The file that is being written. path: of the first; with successors each has a number: night.k8st, night.2.k8st ...

    The first is made here, so that what is wrong is said early. Raises NotWritten.
    """

    def __init__(self, path: Path, sizes: Sizes = Sizes()) -> None:
        self._path, self.sizes = path, sizes
        self._meta: dict[str, Any] = {}
        self._standing = Standing()
        self.names: list[Path] = []
        self._connection: sqlite3.Connection | None = None
        self._fresh = False
        self._began = 0.0
        try:
            self._make()
        except (OSError, sqlite3.Error) as e:
            why = (e.strerror if isinstance(e, OSError) else None) or str(e)
            raise NotWritten(f"The capture {path} cannot be made: {why}.") from e

    def describe(self, meta: dict[str, Any]) -> None:
        """What never changes in this run; to be called before anything is inserted."""
        self._meta = meta | {REPEATED: 0}
        self._meta["parts"] = len(self._meta) + 1

    def _make(self) -> None:
        path = self._path
        if self.names:
            path = path.with_name(f"{path.stem}.{len(self.names) + 1}{path.suffix}")
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        try:
            # SQLite's connections belong to a thread: the writer's opens its own.
            with closing(self._open(path)) as connection:
                connection.execute(f"PRAGMA application_id = {APPLICATION}")
                connection.execute(f"PRAGMA user_version = {VERSION}")
                connection.executescript(TABLES)
        except sqlite3.Error:
            path.unlink()
            raise
        self._connection, self._fresh, self._began = None, True, time.monotonic()
        self.names.append(path)

    @staticmethod
    def _open(path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        connection.execute(f"PRAGMA page_size = {PAGE}")
        # What is committed survives a loss of power, and no second file is left beside it.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA journal_mode = DELETE")
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
                self._standing.take(record)
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
        if self._connection:
            self._connection.close()
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
        for path in self.names:
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """No file is written any more."""
        if self._connection:
            self._connection.close()


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
