# SPDX-License-Identifier: Apache-2.0
"""What became of spans and log records, as numbers. The thread that sends counts, threads that serve metrics read."""

from __future__ import annotations

import threading
from collections import Counter
from enum import StrEnum


class Signal(StrEnum):
    """What is sent, by the word in the path of the collector."""

    TRACES = "traces"
    LOGS = "logs"


class ExportResult(StrEnum):
    """What became of a span or a log record."""

    EXPORTED = "exported"
    SHED = "shed"
    """Not sent: there were too many, or the collector was away, or the run has ended."""
    REFUSED = "refused"
    """Not accepted by the collector."""


class OtlpCounts:
    """The numbers by signal and result; each pair is there from the beginning."""

    def __init__(self) -> None:
        self._counts = Counter({(signal, result): 0 for signal in Signal for result in ExportResult})
        self._lock = threading.Lock()

    def add(self, signal: Signal, result: ExportResult, count: int = 1) -> None:
        """Counts spans or log records."""
        with self._lock:
            self._counts[signal, result] += count

    def read(self) -> dict[tuple[str, str], int]:
        """All numbers so far."""
        with self._lock:
            return {(signal.value, result.value): count for (signal, result), count in self._counts.items()}
