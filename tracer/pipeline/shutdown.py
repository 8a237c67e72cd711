# SPDX-License-Identifier: Apache-2.0
"""Requests to end a run: Ctrl-C, SIGTERM, a closed terminal (SIGHUP), or a call."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Self

from tracer.errors import Interrupted

END_SECONDS = 5.0
"""Maximum time that a run explains packets after a request to end, seconds. On a busy node these are a ring full of packets."""

ANSWER_SECONDS = 0.5
"""Time after a signal from which a note says that the run is ending, seconds."""
EXPLAINING = "Explaining what was seen; Ctrl-C again ends at once."


class StopRequest:
    """A request to end, with a deadline.

    Args:
        seconds: maximum time that packets are explained after it, s; None = END_SECONDS.

    Attributes:
        is_requested: the run should end after it has explained the packets that it has seen.
        is_overdue: the run should end now, with packets left unexplained.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds, self._deadline = END_SECONDS if seconds is None else seconds, math.inf

    @property
    def is_requested(self) -> bool:
        return self._deadline < math.inf

    @property
    def is_overdue(self) -> bool:
        return time.monotonic() > self._deadline

    def request(self) -> None:
        self._deadline = min(self._deadline, time.monotonic() + self._seconds)

    def end_now(self) -> None:
        self._deadline = 0.0


class StopSignals(StopRequest):
    """Ends a run on Ctrl-C, SIGTERM or SIGHUP; a second signal ends it at once. Signals do not interrupt the current work.

    SIGHUP stays ignored if it was ignored at the start, as under nohup. The end of its block gives the signals back their
    earlier handlers.

    Args:
        seconds: maximum time that packets are explained after it, s; None = END_SECONDS.
        on_delay: called when the run has not ended ANSWER_SECONDS after the first signal: the user has to see that it came.
    """

    def __init__(self, seconds: float | None = None, on_delay: Callable[[], None] | None = None) -> None:
        super().__init__(seconds)
        self._on_delay = on_delay
        self._alarm = signal.signal(signal.SIGALRM, self._answer) if on_delay else None
        handled = [signal.SIGINT, signal.SIGTERM]
        handled += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else []
        self._previous_handlers = {s: signal.signal(s, self._handle) or signal.SIG_DFL for s in handled}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:
            self.end_now()
        else:
            self.request()
            if self._on_delay:
                signal.setitimer(signal.ITIMER_REAL, ANSWER_SECONDS)

    def _answer(self, number: int, frame: FrameType | None) -> None:
        with suppress(OSError, RuntimeError):  # RuntimeError: the signal came while the same stream was written
            if self._on_delay:
                self._on_delay()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._restore()

    def _restore(self) -> None:
        if self._on_delay:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._alarm)
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)


class ReadingSignals(StopSignals):
    """Signals while a capture is read. There is nothing to save, so the second signal raises KeyboardInterrupt at any point.

    END_SECONDS after the first signal KeyboardInterrupt is raised, too: one part of a capture can be very large.
    """

    def __init__(self) -> None:
        super().__init__()
        self._previous_alarm = signal.signal(signal.SIGALRM, self._interrupt)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:
            self._interrupt(number, frame)
        self.request()
        signal.setitimer(signal.ITIMER_REAL, END_SECONDS)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.end_now()
        raise KeyboardInterrupt

    def _restore(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._previous_alarm)
        super()._restore()


@contextmanager
def reading(paths: Sequence[str]) -> Iterator[ReadingSignals]:
    """A block in which captures are read. Raises Interrupted when a signal requested the end, at any point of the block."""
    interrupted = Interrupted(f"Interrupted while reading {' and '.join(paths)}: the answer is not complete.")
    with ReadingSignals() as stop:
        try:
            yield stop
        except KeyboardInterrupt:
            raise interrupted from None
        except BrokenPipeError:
            raise  # Ctrl-C also ends the process that reads the pipe
        except Exception:
            if stop.is_requested:
                raise interrupted from None  # the interrupted code may raise its own exception
            raise
    if stop.is_requested:
        raise interrupted
