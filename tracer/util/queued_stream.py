# SPDX-License-Identifier: Apache-2.0
"""A text stream with a bounded queue: its writer waits neither for a slow reader nor for a broken one.

A thread of its own writes the queue to a file descriptor, so no lock of Python's streams is held while the descriptor blocks.

After each system call that thread waits for the interpreter's lock, up to 5 ms while another thread computes
(sys.getswitchinterval). So it writes many records in one call. On a descriptor that may block in the middle of a call, it could
not count which of these records were written: there it writes one record at a time.
"""

from __future__ import annotations

import io
import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from tracer.util.worker import Worker

QUEUE_BYTES = 16 << 20
"""Most bytes that wait in one queue."""
BATCH_BYTES = 1 << 20
"""Most bytes of one system call, unless one record has more."""
END_SECONDS = 5.0
"""Longest wait for the end of a thread that has nothing left to write, s."""
PAUSE_SECONDS = 0.1
"""Interval at which a waiting writer looks whether it may give up, s."""


class QueuedStream(io.TextIOBase):
    """Each call of `write` is one record: it is written as a whole, or shed.

    Args:
        fd: Descriptor to write to. The caller keeps it open, and closes it.
        name: Name of the thread.
        waits: A full queue makes the writer wait; False: the record is shed.
        most_bytes: Bound of the queue.
        guard: Gives a block in which each system call is made, such as one without a status line on the same terminal.

    Attributes:
        shed: Records that were not written. The last one may have been written in part.
        error: The error after which nothing is written any more; None = none.
        is_last: Records are accepted although the queue is full. For the end of a run, which must not be shed.
    """

    def __init__(
        self,
        fd: int,
        name: str,
        waits: bool = False,
        most_bytes: int = 0,
        guard: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._fd, self._waits, self._most_bytes = fd, waits, most_bytes or QUEUE_BYTES
        self._own_fd, self._guard = _never_blocking(fd), guard
        self._records: deque[bytes] = deque()
        self._bytes = 0
        self._written_of_first = 0
        self._changed = threading.Condition()
        self._is_closing = self._is_given_up = False
        self._progress = time.monotonic()
        self.shed, self.is_last = 0, False
        self.error: OSError | None = None
        self._thread = Worker(f"output {name}", self._write_next).start()

    def write(self, text: str) -> int:
        """Queues one record. Never raises an error of the descriptor: see `error`."""
        record = text.encode("utf-8", "backslashreplace")
        with self._changed:
            while self._waits and self._is_full(record) and not self.error:
                self._changed.wait(PAUSE_SECONDS)
            if self.error or (self._is_full(record) and not self.is_last):
                self.shed += 1
            else:
                self._records.append(record)
                self._bytes += len(record)
                self._changed.notify_all()
        return len(text)

    def _is_full(self, record: bytes) -> bool:
        return self._bytes > 0 and self._bytes + len(record) > self._most_bytes

    def _write_next(self) -> bool:
        """Writes the oldest records; False = nothing will follow."""
        with self._changed:
            while not self._records:
                if self._is_closing:
                    self._close()
                    return False
                self._changed.wait()
            batch = self._oldest()
        try:
            self._write_all(batch)
        except OSError as e:
            with self._changed:
                self.error = e
                self._give_up()
                self._close()
            return False
        return True

    def _oldest(self) -> bytes:
        """The records of the next system call."""
        batch: list[bytes] = []
        size = 0
        for record in self._records:
            if batch and (self._own_fd is None or size + len(record) > BATCH_BYTES):
                break
            batch.append(record)
            size += len(record)
        return b"".join(batch)

    def _write_all(self, batch: bytes) -> None:
        fd, left = self._fd if self._own_fd is None else self._own_fd, memoryview(batch)
        while left and not self._is_given_up:  # the caller may have closed the descriptor
            try:
                with self._guard():
                    written = os.write(fd, left)
            except BlockingIOError:
                select.select([], [fd], [], PAUSE_SECONDS)
                continue
            left = left[written:]
            with self._changed:
                self._note_written(written)

    def _note_written(self, count: int) -> None:
        """Removes the records that are written as a whole."""
        self._progress = time.monotonic()
        if self._is_given_up:
            return
        count += self._written_of_first
        while self._records and len(self._records[0]) <= count:
            record = self._records.popleft()
            self._bytes -= len(record)
            count -= len(record)
        self._written_of_first = count
        self._changed.notify_all()

    def _give_up(self) -> None:
        self.shed += len(self._records)
        self._records.clear()
        self._bytes = 0
        self._changed.notify_all()

    def _close(self) -> None:
        if self._own_fd is not None:
            os.close(self._own_fd)
            self._own_fd = None

    def drain(self, patience: float) -> None:
        """Waits until all records are written, and ends the thread.

        Args:
            patience: Longest time without progress, s. Then the remaining records are shed.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            self._progress = time.monotonic()
            while self._records:
                if time.monotonic() - self._progress > patience:
                    self._is_given_up = True
                    self._give_up()
                    return
                self._changed.wait(PAUSE_SECONDS)
        self._thread.join(END_SECONDS)

    def flush(self) -> None:
        """Does nothing: the thread writes each record at once."""

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has an attribute
        return "utf-8"


def _never_blocking(fd: int) -> int | None:
    """A descriptor of the same file that never blocks; None = there is none.

    The mode is a property of the open file, which other processes may have, so the file is opened again. A regular file never
    blocks.
    """
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return os.dup(fd)
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
