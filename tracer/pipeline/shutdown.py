# SPDX-License-Identifier: Apache-2.0
"""How a run is asked to end: by Ctrl-C, SIGTERM, a terminal that is closed (SIGHUP), or by its caller."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from tracer.errors import Interrupted

END_SECONDS = 5.0
"""How long a run that was asked to end goes on to explain what it has seen: on a busy node, a ring full of packets."""


class StopRequest:
    """asked: a run is to end when it has explained what it has seen. late: now, whatever is left."""

    def __init__(self) -> None:
        self._until = math.inf

    @property
    def asked(self) -> bool:
        return self._until < math.inf

    @property
    def late(self) -> bool:
        return time.monotonic() > self._until

    def request(self) -> None:
        self._until = min(self._until, time.monotonic() + END_SECONDS)

    def hurry(self) -> None:
        self._until = 0.0


class StopSignals(StopRequest):
    """Ctrl-C, SIGTERM and SIGHUP end a run, twice: at once. They do not interrupt what it is doing.

    SIGHUP stays ignored where it was ignored from the start: nohup asks for that.
    """

    def __init__(self) -> None:
        super().__init__()
        ends = [signal.SIGINT, signal.SIGTERM]
        ends += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else []
        self._before = {s: signal.signal(s, self._ask) or signal.SIG_DFL for s in ends}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self.hurry()
        else:
            self.request()

    def restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class ReadingSignals(StopSignals):
    """While a capture is read: there is nothing to save, so the second signal ends it wherever it is, with KeyboardInterrupt.

    So does the first one when END_SECONDS were not enough: a part of a capture can be as large as its maker wants.
    """

    def __init__(self) -> None:
        super().__init__()
        self._alarm = signal.signal(signal.SIGALRM, self._now)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self._now(number, frame)
        self.request()
        signal.setitimer(signal.ITIMER_REAL, END_SECONDS)

    def _now(self, number: int, frame: FrameType | None) -> None:
        self.hurry()
        raise KeyboardInterrupt

    def restore(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._alarm)
        super().restore()


@contextmanager
def reading(paths: Sequence[str]) -> Iterator[ReadingSignals]:
    """Captures are read in the block. Raises Interrupted when it was asked to end there, however far the block has come."""
    stop = ReadingSignals()
    why = Interrupted(f"Interrupted while reading {' and '.join(paths)}: the answer is not complete.")
    try:
        yield stop
    except KeyboardInterrupt:
        raise why from None
    except BrokenPipeError:
        raise  # Ctrl-C ends the reader of a pipe, too
    except Exception:
        if stop.asked:
            raise why from None  # what was interrupted may say so in its own words
        raise
    finally:
        stop.restore()
    if stop.asked:
        raise why
