# SPDX-License-Identifier: Apache-2.0
"""How many rules the threads of this process have read, of those that they are reading."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ReadingProgress:
    """Counts rules while a thread reads some; any thread may add to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers = self._read = self._expected = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A block that reads rules. The counts begin at 0 when no other thread is in such a block."""
        with self._lock:
            if not self._readers:
                self._read = self._expected = 0
            self._readers += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers -= 1

    def add(self, count: int) -> None:
        """That many rules were read, of an unknown number."""
        with self._lock:
            self._read += count

    @contextmanager
    def table(self, count: int) -> Iterator[Callable[[int], None]]:
        """A block that reads `count` rules; all of them count as read at its end.

        Yields:
            A function that adds to the number of those that were read.
        """
        counted = 0

        def add(more: int) -> None:
            nonlocal counted
            more = min(more, count - counted)
            counted += more
            self.add(more)

        with self._lock:
            self._expected += count
        yield add
        add(count)

    def phrase(self) -> str:
        """ "12,000 of 80,000 rules read"; without the total where it is not known; "" = none are being read."""
        with self._lock:
            if not self._readers or not (self._read or self._expected):
                return ""
            total = f" of {self._expected:,}" if self._expected > self._read else ""
            return f"{self._read:,}{total} rules read"


rules_read = ReadingProgress()
"""The rules of this process."""
