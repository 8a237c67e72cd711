# SPDX-License-Identifier: Apache-2.0
"""Writes rows to a store: batches to the spool at once, and from there to the store in another thread."""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

from tracer.store.bucket import Bucket
from tracer.store.segment import StoredRow
from tracer.store.spool import SPOOL_BYTES, Spool
from tracer.store.uploader import Uploader
from tracer.util.worker import Worker

SEGMENT_BYTES = 4 << 20
"""Size at which a segment is closed, bytes. To make Parquet files of one takes some 12 times as much memory."""
SEGMENT_SECONDS = 300.0
"""Age at which a segment is closed, s: rows are that much later in the store, at most."""
URGENT_SECONDS = 10.0
"""The same for a segment with a finding, s."""
MOST_BATCH = 20_000
"""Rows in memory; more are written before the end of the batch."""
POLL_SECONDS = 0.5
"""Interval at which the thread looks for closed segments, s."""


def new_run() -> str:
    """A name for a run, unique also among the agents of one node."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}-{secrets.token_hex(4)}"


class StoreWriter:
    """Takes rows; nothing here waits for the store.

    Args:
        bucket: The store.
        spool: Directory of the spool.
        node: Name of the node.
        run: Name of the run.
        most_bytes: Bound of the spool, bytes.
        is_timed: Segments are closed by age, too. If not, the same rows always give the same files.
        clock: Gives a monotonic time, s.
        has_thread: Uploads in a thread of its own; if not, the caller calls `upload`.

    Attributes:
        run: Name of the run.
        accepted: Rows that were given, by table.
        lost: Rows that the store does not have and will not get, by (table, cause).
        uploader: What brings the rows to the store.

    Raises:
        OSError: The spool cannot be used.
    """

    def __init__(
        self,
        bucket: Bucket,
        spool: Path,
        node: str,
        run: str = "",
        most_bytes: int = SPOOL_BYTES,
        is_timed: bool = True,
        clock: Callable[[], float] = time.monotonic,
        has_thread: bool = True,
    ) -> None:
        self.run = run or new_run()
        self._spool = Spool(spool, self.run, node, most_bytes)
        self.adopted = self._spool.adopt()
        self.uploader = Uploader(bucket, self._spool)
        self._clock, self._is_timed = clock, is_timed
        self._deadline = 0.0
        self._rows: list[StoredRow] = []
        self.accepted: Counter[str] = Counter()
        self.lost: Counter[tuple[str, str]] = Counter()
        self._is_over, self._is_abandoned, self._woken = Event(), Event(), Event()
        self._thread = Worker("store: rows to the bucket", self._work).start() if has_thread else None

    def add(self, rows: Iterable[StoredRow]) -> None:
        """Takes rows. They are safe from `kill -9` after `commit`."""
        self._rows += rows
        if len(self._rows) >= MOST_BATCH:
            self.commit()

    def commit(self, is_urgent: bool = False) -> bool:
        """Writes the rows so far to the spool, and closes the segment if it is large or old.

        Args:
            is_urgent: The rows should soon be in the store.

        Returns:
            Whether the disk took them. If not, they are lost, and counted.
        """
        rows, self._rows = self._rows, []
        is_whole, now = True, self._clock()
        if rows:
            for row in rows:
                self.accepted[row.table] += 1
            if not self._spool.open_bytes:
                self._deadline = now + SEGMENT_SECONDS
            try:
                self._spool.append(rows)
            except OSError as e:
                is_whole = False
                for table, count in Counter(row.table for row in rows).items():
                    self._spool.count_lost(table, f"the spool could not be written: {e.strerror or e}", count)
            if is_urgent:
                self._deadline = min(self._deadline, now + URGENT_SECONDS)
        if self._spool.open_bytes >= SEGMENT_BYTES or (self._is_timed and self._spool.open_bytes and now >= self._deadline):
            self.rotate()
        return is_whole

    def leave_out(self, table: str, why: str) -> None:
        """Counts a row that is not written because it would cost too much. why: a clause."""
        self._spool.count_lost(table, why)

    def rotate(self) -> None:
        """Closes the segment: its rows can be uploaded."""
        try:
            self._spool.rotate()
        except OSError as e:
            self.uploader.problem = f"The spool cannot be written: {e.strerror or e}."
        self._woken.set()

    def read_lost(self) -> dict[tuple[str, str], int]:
        """The rows that were lost since the last call, by (table, cause)."""
        lost = self._spool.read_lost()
        self.lost.update(lost)
        return lost

    def upload(self) -> bool:
        """Uploads what is closed. Returns whether nothing is left. Only without a thread."""
        return self.uploader.step(self._clock())

    def _work(self) -> bool:
        self._woken.wait(POLL_SECONDS)
        self._woken.clear()
        is_over = self._is_over.is_set()
        is_done = self.uploader.step(self._clock())
        return not (is_over and is_done) and not self._is_abandoned.is_set()

    def close(self, seconds: float) -> int:
        """Ends: uploads what is there, again after a failure while there is time.

        Returns the number of segments that wait in the spool for the next run.

        Args:
            seconds: Longest time that this waits for the store, s.
        """
        self.commit()
        self.rotate()
        self.uploader.retry_now()
        self._is_over.set()
        self._woken.set()
        if self._thread:
            self._thread.join(seconds)
            self._is_abandoned.set()
        else:
            self.upload()
        self.read_lost()
        return self._spool.close()
