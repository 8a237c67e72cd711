# SPDX-License-Identifier: Apache-2.0
"""Threads that survive errors: an unexpected error in one unit of work becomes a warning, and the next unit follows.

Others write the rules, names and objects: a container's rules, a pod's name, an answer of the API. No such data may end a
thread.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable

PAUSE_SECONDS = 0.1
"""Pause after a failed unit, s, so that a unit that always fails does not occupy a CPU."""
MOST = 64
"""Largest number of different warnings that are shown; more are only logged."""

_log = logging.getLogger(__name__)


def place_of(error: BaseException) -> str:
    """Where an error was raised: " at FILE:LINE"; "" = not known."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return f" at {last[0].filename.rpartition('/')[2]}:{last[0].lineno}" if last else ""


class Warnings:
    """Warnings for the user from any thread, each shown once.

    Attributes:
        failures: Number of failed units of work, also those of which the warning is not shown again.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._keys: set[object] = set()
        self._queue: deque[str] = deque(maxlen=most + 1)
        self._lock = threading.Lock()
        self.failures = 0

    def add(self, sentence: str, key: object = None) -> None:
        """Adds a warning, unless one with the same key was added before. key: None = the sentence is the key."""
        with self._lock:
            if (key or sentence) in self._keys or len(self._keys) > self._most:
                return
            self._keys.add(key or sentence)
            full = len(self._keys) > self._most
            self._queue.append("There are more errors of this kind; they are not shown." if full else sentence)

    def add_failure(self, what: str, error: Exception) -> None:
        """Adds a warning that `what` met an unexpected error and continues; once for each error and line of code."""
        self.failures += 1
        _log.debug("%s failed", what, exc_info=error)
        at = place_of(error)
        sentence = (
            f"An unexpected error in {what}{at} ({type(error).__name__}: {str(error)[:200]}). The run continues without it."
        )
        self.add(sentence, (what, type(error).__name__, at))

    def read(self) -> list[str]:
        """Warnings added since the last call."""
        return [self._queue.popleft() for _ in range(len(self._queue))]


user_warnings = Warnings()
"""The warnings of this process. A run's source shows them to the user between two batches."""


class ThreadDeaths:
    """The threads that ended otherwise than by their own decision: an error that is no Exception, or one in the handling of an
    error. Nothing does their work any more."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def add(self, name: str) -> None:
        """Notes a thread. name: from the code, so the number of names is small."""
        self._names.add(name)

    def names(self) -> list[str]:
        """The names of these threads, sorted."""
        return sorted(self._names)


thread_deaths = ThreadDeaths()
"""The dead threads of this process."""


class Worker:
    """A daemon thread that calls `unit` until it returns False. name: name of the thread, also in warnings."""

    def __init__(self, name: str, unit: Callable[[], bool]) -> None:
        self._unit = unit
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> Worker:
        self._thread.start()
        return self

    def _run(self) -> None:
        is_over = False
        try:
            self._work()
            is_over = True
        finally:
            if not is_over:
                thread_deaths.add(self._thread.name)

    def _work(self) -> None:
        pause = threading.Event()
        while True:
            try:
                if not self._unit():
                    return
            except Exception as e:
                user_warnings.add_failure(f"the thread {self._thread.name!r}", e)
                pause.wait(PAUSE_SECONDS)

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def is_alive(self) -> bool:
        return self._thread.is_alive()
