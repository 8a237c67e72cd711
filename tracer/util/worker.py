# SPDX-License-Identifier: Apache-2.0
"""Threads that stay alive: an unexpected error in one unit of work is told to the user, and the next unit follows.

Rules, names and objects are written by others: a container's rules, a pod's name, an answer of the API. Whatever they are, no
thread ends because of them.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable

PAUSE_SECONDS = 0.1
"""Pause after a unit that failed: one that always fails must not use a CPU."""
MOST = 64
"""Different errors that are told to the user; more are only logged."""

_log = logging.getLogger(__name__)


class Warnings:
    """Sentences for the user from any thread, each of them once."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._known: set[object] = set()
        self._said: deque[str] = deque(maxlen=most + 1)
        self._lock = threading.Lock()

    def add(self, sentence: str, key: object = None) -> None:
        """Adds a sentence, unless one with this key (the sentence itself if there is none) was said before."""
        with self._lock:
            if (key or sentence) in self._known or len(self._known) > self._most:
                return
            self._known.add(key or sentence)
            full = len(self._known) > self._most
            self._said.append("There are more errors of this kind; they are not shown." if full else sentence)

    def add_failure(self, what: str, error: Exception) -> None:
        """Says that `what` met an unexpected error and goes on. The same error at the same line of code is said once."""
        _log.debug("%s failed", what, exc_info=error)
        last = traceback.extract_tb(error.__traceback__)[-1:]
        at = f" at {last[0].filename.rpartition('/')[2]}:{last[0].lineno}" if last else ""
        sentence = (
            f"An unexpected error in {what}{at} ({type(error).__name__}: {str(error)[:200]}). The run goes on without that."
        )
        self.add(sentence, (what, type(error).__name__, at))

    def read(self) -> list[str]:
        """What was said since the last call."""
        return [self._said.popleft() for _ in range(len(self._said))]


user_warnings = Warnings()
"""Of this process. A run's source gives them to the user, between two batches."""


class Worker:
    """A daemon thread that calls `unit` until it returns False. name: of the thread, also in what the user is told."""

    def __init__(self, name: str, unit: Callable[[], bool]) -> None:
        self._unit = unit
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> Worker:
        self._thread.start()
        return self

    def _run(self) -> None:
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
