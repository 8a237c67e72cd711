# SPDX-License-Identifier: Apache-2.0
"""Runs the screen in the main thread, where Textual handles signals, and the traced run in another one."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO, cast

from tracer.pipeline.shutdown import ANSWER_SECONDS, EXPLAINING, StopRequest
from tracer.render.text import TextOutput
from tracer.ui.app import TraceScreen
from tracer.ui.feed import ScreenFeed
from tracer.util.bounded_queue import BoundedQueue

MOST_LOG_LINES = 10_000
"""Most lines of the log that wait for the end of the screen."""

_log = logging.getLogger(__name__)


class ScreenRun:
    """A run with a screen.

    Args:
        feed: The sink of the run.
        verbose: Show every hop at first.
    """

    def __init__(self, feed: ScreenFeed, verbose: bool = False) -> None:
        self._feed, self._verbose = feed, verbose
        self._status = 0

    def drive(self, complete: Callable[[], int], stop: StopRequest) -> int:
        """Shows the screen until the user leaves it; then the run ends, too.

        Args:
            complete: The run, from the first batch to the release of what it holds. Called in another thread.
            stop: The request to end it.

        Returns:
            The result of `complete`.

        Raises:
            BaseException: The error that ended the run, or that of the screen.
        """
        worker = threading.Thread(target=self._run, args=(complete,), name="run", daemon=True)
        worker.start()
        try:
            with _held_log(), _lasting_terminal(stop):
                screen = TraceScreen(self._feed, stop, self._verbose)
                screen.run()
        finally:
            stop.request()
            self._wait(worker)
        self._print_end()
        error = self._feed.error or screen.failure
        if error:
            raise error
        return self._status

    def _wait(self, worker: threading.Thread) -> None:
        """Waits for the run. If it does not end at once, the user has to see that it ends."""
        worker.join(ANSWER_SECONDS)
        if worker.is_alive():
            with suppress(OSError):
                TextOutput(sys.stdout, sys.stderr).note(EXPLAINING)
        worker.join()

    def _run(self, complete: Callable[[], int]) -> None:
        try:
            self._status = complete()
        except BaseException as e:
            _log.debug("the run ends", exc_info=e)
            self._feed.end(e)
        else:
            self._feed.end()

    def _print_end(self) -> None:
        """Prints the notes and the summary, which stay on the terminal, unless it was closed. A browser has no terminal."""
        if not sys.stdout.isatty():
            return
        text = TextOutput(sys.stdout, sys.stderr)
        with suppress(OSError):
            for note in self._feed.notes.read():
                text.note(note)
            if self._feed.totals:
                text.lost_by_probe = self._feed.lost_by_probe
                text.summary(self._feed.totals)


@contextmanager
def _held_log() -> Iterator[None]:
    """A block in which the log of `--debug` waits: the screen has the terminal."""
    handlers = [each for each in logging.getLogger("tracer").handlers if isinstance(each, logging.StreamHandler)]
    lines: BoundedQueue[str] = BoundedQueue(MOST_LOG_LINES, "lines of the log that wait for ui")
    streams = [each.setStream(cast(TextIO, _Lines(lines))) for each in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, streams, strict=True):
            handler.setStream(stream)
        for line in lines.read():
            sys.stderr.write(line)


class _Lines(io.TextIOBase):
    """A stream to a queue of lines."""

    def __init__(self, lines: BoundedQueue[str]) -> None:
        self._lines = lines

    def write(self, text: str) -> int:
        self._lines.append(text)
        return len(text)


@contextmanager
def _lasting_terminal(stop: StopRequest) -> Iterator[None]:
    """A block in which Textual can write to a terminal that was closed: the run ends then, and the text is dropped."""
    before = sys.__stderr__
    sys.__stderr__ = cast(TextIO, _LastingStream(before, stop)) if before else before  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        sys.__stderr__ = before  # type: ignore[misc]


class _LastingStream(io.TextIOBase):
    """The terminal's stream. After an error nothing is written any more."""

    def __init__(self, stream: TextIO, stop: StopRequest) -> None:
        self._stream, self._stop = stream, stop
        self._is_closed = False

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, call: Callable[[], object]) -> None:
        if not self._is_closed:
            try:
                call()
            except (OSError, ValueError):
                self._is_closed = True
                self._stop.request()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()
