# SPDX-License-Identifier: Apache-2.0
"""The thread of an output that brings results to a server: the run never waits for it but at its end."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

from tracer.node.capabilities import give_up
from tracer.util.worker import Worker


class SendingThread:
    """A thread that sends what waits. It has no capability.

    Args:
        name: Name of the thread.
        step: Sends what is there; called with whether the run is over. Returns whether nothing is left.
        pause: Longest time between two steps, s.
    """

    def __init__(self, name: str, step: Callable[[bool], bool], pause: float) -> None:
        self._name, self._step, self._pause = name, step, pause
        self._woken, self._is_over, self._is_abandoned = Event(), Event(), Event()
        self._is_restricted = False
        self._worker: Worker | None = None

    def start(self) -> None:
        self._worker = Worker(self._name, self._work).start()

    def _work(self) -> bool:
        if not self._is_restricted:
            give_up(())
            self._is_restricted = True
        self._woken.wait(self._pause)
        self._woken.clear()
        is_over = self._is_over.is_set()
        is_done = self._step(is_over)
        return not (is_over and is_done) and not self._is_abandoned.is_set()

    def wake(self) -> None:
        """Lets the next step begin now."""
        self._woken.set()

    def end(self, seconds: float, interrupt: Callable[[], None] = lambda: None) -> None:
        """Ends the thread: it has some time to send the rest.

        Args:
            seconds: That time, s.
            interrupt: Called then; it ends a request that is under way, so that the thread ends within a quarter of the time.
        """
        self._is_over.set()
        self._woken.set()
        if self._worker:
            self._worker.join(seconds)
        self._is_abandoned.set()
        interrupt()
        if self._worker:
            self._worker.join(seconds / 4)
