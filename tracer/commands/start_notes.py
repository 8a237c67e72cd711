# SPDX-License-Identifier: Apache-2.0
"""Says on stderr what a start does: on a terminal one line that changes, elsewhere only lines about what takes long.

It is imported before anything else of a start, because importing the rest takes half a second.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from tracer.util.escape import escaped_line
from tracer.util.status_line import StatusLine
from tracer.util.worker import Worker

REPAINT_SECONDS = 0.5
"""Interval in which the line is written again, s: it shows the time."""
LONG_PHASES = ("compiling",)
"""First words of the phases that are said where stderr is no terminal; each once."""
LONG_SECONDS = 2.0
"""Length of a start from which its end is said where stderr is no terminal, s."""
PAINT_SECONDS = 0.05
"""Shortest time between two phases of the same first word that are both shown, s."""


def process_seconds() -> float:
    """Time since this process was started, s; 0 if /proc does not say it."""
    with suppress(OSError, ValueError, IndexError):
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    return 0.0


class StartNotes:
    """The notes of one start; a context manager that removes the line. The stream is stderr.

    Args:
        line: Where they are shown on a terminal; None = stderr.

    Attributes:
        line: The same.
    """

    def __init__(self, line: StatusLine | None = None) -> None:
        self._began = time.monotonic() - process_seconds()
        self.line = line or StatusLine()
        self._lock, self._ended = threading.RLock(), threading.Event()
        self._phase, self._painted_at = "", 0.0
        self._detail: Callable[[], str] | None = None
        self._said: set[str] = set()

    def report(self, phase: str, detail: Callable[[], str] | None = None) -> None:
        """What is being done now.

        Args:
            phase: A phrase.
            detail: Gives a further phrase about it each time the line is written, "" = none.
        """
        word = phase.partition(" ")[0]
        with self._lock:
            is_new = word != self._phase.partition(" ")[0]
            self._phase, self._detail = phase, detail
            if is_new or time.monotonic() >= self._painted_at + PAINT_SECONDS:
                self._paint()
        if not self.line.is_live and word in LONG_PHASES and word not in self._said:
            self._said.add(word)
            self._write(f"Starting: {phase.partition(',')[0]} for this kernel.\n")

    def warn(self, sentence: str) -> None:
        """Writes a sentence that stays."""
        with self._lock:
            with self.line.hidden():
                self._write(escaped_line(sentence) + "\n")
            self._paint()

    def ready(self) -> None:
        """The start has ended: says how long it took, unless it was short and stderr is no terminal."""
        self.close()
        seconds = time.monotonic() - self._began
        if self.line.is_live or seconds >= LONG_SECONDS:
            self._write(f"Ready after {seconds:.1f} s.\n")

    def close(self) -> None:
        """Removes the line."""
        self._ended.set()
        with self._lock:
            self._phase = ""
            self.line.erase()

    def _paint(self) -> None:
        if self._phase and self.line.is_live:
            self._painted_at = time.monotonic()
            detail = self._detail() if self._detail else ""
            phrase = f"{self._phase}, {detail}" if detail else self._phase
            self.line.show(f"Starting: {phrase} ({self._painted_at - self._began:.0f} s)")

    def _write(self, text: str) -> None:
        """Writes to stderr. A start goes on when nothing can be written there."""
        with suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()

    def _repaint(self) -> bool:
        """Waits, and writes the line again. Returns False when the start has ended."""
        if self._ended.wait(REPAINT_SECONDS):
            return False
        with self._lock:
            self._paint()
        return True

    def __enter__(self) -> StartNotes:
        if self.line.is_live:
            Worker("start notes", self._repaint).start()
            self.report("loading")
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
