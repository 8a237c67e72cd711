# SPDX-License-Identifier: Apache-2.0
"""What became of spans and log records, as numbers. The thread that sends counts, threads that serve metrics read."""

from __future__ import annotations

from enum import StrEnum
from itertools import product

from tracer.util.locked_counts import LockedCounts


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


class OtlpCounts(LockedCounts[tuple[str, str]]):
    """The numbers by signal and result; each pair is there from the beginning."""

    def __init__(self) -> None:
        super().__init__((signal.value, result.value) for signal, result in product(Signal, ExportResult))
