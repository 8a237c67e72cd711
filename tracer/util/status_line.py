# SPDX-License-Identifier: Apache-2.0
"""A line at the bottom of a terminal that changes: what a start does, and what a run has seen so far.

Whatever else writes to the same terminal does it in a block of `hidden`, so that the line never mixes with other text.
"""

from __future__ import annotations

import io
import os
import select
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO, cast

from tracer.util.escape import escaped_line
from tracer.util.line_folding import USUAL_COLUMNS, terminal_columns

ERASE = "\r\033[K"
"""Moves to the beginning of the line, and clears it."""


class StatusLine:
    """The line. Any thread may use it.

    Args:
        stream: The terminal; None = stderr.
        is_wanted: False: the line is never shown.

    Attributes:
        is_live: Whether the stream is a terminal that can erase a line. Otherwise nothing is written.
    """

    def __init__(self, stream: TextIO | None = None, is_wanted: bool = True) -> None:
        self._stream = stream or sys.stderr
        self._lock = threading.RLock()
        self._is_painted = False
        self.is_live = is_wanted and self._stream.isatty() and os.environ.get("TERM") != "dumb"

    def show(self, text: str) -> None:
        """Replaces the line. What does not fit is cut off.

        Never waits: nothing is shown in the background, on a terminal that takes nothing (Ctrl-S), and while another thread
        writes to it.
        """
        if not self.is_live or not self._lock.acquire(blocking=False):
            return
        try:
            if self._is_foreground() and self._is_writable():
                self._write(ERASE + escaped_line(text)[: (terminal_columns(self._stream) or USUAL_COLUMNS) - 1])
                self._is_painted = True
        finally:
            self._lock.release()

    def erase(self) -> None:
        with self._lock:
            if self._is_painted:
                self._write(ERASE)
            self._is_painted = False

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """A block that writes to the terminal: the line is erased before, and not shown within."""
        with self._lock:
            self.erase()
            yield

    def guarded(self, stream: TextIO) -> TextIO:
        """The stream, if it is no terminal; else one that erases the line before it writes there."""
        return cast(TextIO, GuardedStream(stream, self)) if self.is_live and stream.isatty() else stream

    def _is_foreground(self) -> bool:
        """Whether this process may write to its terminal; True where this is not known."""
        try:
            return os.tcgetpgrp(self._stream.fileno()) == os.getpgrp()
        except (OSError, ValueError):
            return True

    def _is_writable(self) -> bool:
        """Whether the terminal takes text now; True where this is not known."""
        try:
            return bool(select.select([], [self._stream], [], 0)[1])
        except (OSError, ValueError):
            return True

    def _write(self, text: str) -> None:
        """A run goes on when nothing can be written here."""
        with suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


def is_own(stream: TextIO) -> bool:
    """Whether no other program can print to the terminal what is written to a stream: it is no pipe and no socket."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode))


class GuardedStream(io.TextIOBase):
    """A stream to the terminal of a status line. Each call of `write` reaches the terminal before the line is shown again."""

    def __init__(self, stream: TextIO, line: StatusLine) -> None:
        self._stream, self._line = stream, line

    def write(self, text: str) -> int:
        with self._line.hidden():
            written = self._stream.write(text)
            self._stream.flush()
        return written

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has an attribute
        return self._stream.encoding
