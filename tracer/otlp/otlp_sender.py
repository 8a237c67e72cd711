# SPDX-License-Identifier: Apache-2.0
"""Brings spans and log records to a collector with the exporters of OpenTelemetry: the work of one thread, step by step.

The batch processors of the library are not used: they do not tell what they drop, they lose a batch that the collector did not
take within seconds, and their end may take half a minute.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import Generic, Protocol, TypeVar

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.trace import ReadableSpan

from tracer.otlp.collector_session import CollectorSession
from tracer.otlp.otlp_counts import ExportResult, OtlpCounts, Signal
from tracer.util.bounded_queue import BoundedQueue

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

MOST_SPANS, MOST_LOG_RECORDS = 1024, 1024
"""Spans and log records that wait for the collector; further ones are shed. A span of 11 hops takes 19 kB of memory."""
BATCH = 128
"""Spans or log records of one request."""
ANSWER_SECONDS = 5.0
"""Longest time of one request and of the attempts that the library makes in it, s."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between attempts, doubled each time."""
LONGEST_REQUESTED_PAUSE = 300
"""Longest pause that the collector can ask for, s."""
RETRYABLE = frozenset({0, 408, 429, 502, 503, 504})
"""Statuses after which the same batch is sent again; 0 = no answer. Source: the specification of OTLP/HTTP."""
MOST_NOTES = 16


class RecordExporter(Protocol[T_contra]):
    """An exporter of the library."""

    def export(self, batch: Sequence[T_contra], /) -> object: ...
    def shutdown(self) -> None: ...


class Outbox(Generic[T]):
    """What waits for the collector, of one signal.

    Args:
        signal: The signal.
        most: Largest number of records that wait.
        session: Notes how a request ended.
        exporter: Sends a batch.
        counts: What became of the records.
    """

    def __init__(
        self, signal: Signal, most: int, session: CollectorSession, exporter: RecordExporter[T], counts: OtlpCounts
    ) -> None:
        self.signal, self._most, self._session, self._exporter, self._counts = signal, most, session, exporter, counts
        self._waiting: deque[T] = deque()
        self._lock = Lock()

    def add(self, record: T) -> None:
        """Takes a record; without room it is shed. Called by the thread of the run."""
        with self._lock:
            if len(self._waiting) < self._most:
                self._waiting.append(record)
                return
        self.shed()

    def shed(self, count: int = 1) -> None:
        """Counts records that are not sent."""
        self._counts.add((self.signal, ExportResult.SHED), count)

    def __len__(self) -> int:
        return len(self._waiting)

    def send(self) -> bool:
        """Sends one batch. Returns whether it is done with: accepted or refused."""
        batch = [self._waiting[at] for at in range(min(BATCH, len(self._waiting)))]
        session, before = self._session, self._session.requests
        self._exporter.export(batch)
        is_sent = session.requests > before
        if is_sent and session.status in RETRYABLE:
            return False
        with self._lock:
            for _ in batch:
                self._waiting.popleft()
        # The library takes a redirection, which it does not follow, for a success.
        is_accepted = is_sent and 200 <= session.status < 300
        result = ExportResult.EXPORTED if is_accepted else ExportResult.REFUSED if is_sent else ExportResult.SHED
        self._counts.add((self.signal, result), len(batch))
        return True

    def give_up(self) -> int:
        """Sheds what waits. Returns its number."""
        with self._lock:
            count = len(self._waiting)
            self._waiting.clear()
        self.shed(count)
        return count

    def end(self) -> None:
        """Ends the pauses of the library."""
        self._exporter.shutdown()


class OtlpSender:
    """The outboxes of one collector.

    Args:
        url: Base URL of the collector.
        counts: What became of the records.

    Attributes:
        spans: Spans that wait.
        log_records: Log records that wait.
    """

    def __init__(self, url: str, counts: OtlpCounts) -> None:
        self.url = url
        # What these would write to standard error, this class says once.
        library = logging.getLogger("opentelemetry")
        library.propagate, library.handlers = False, [logging.NullHandler()]
        self._session = session = CollectorSession()
        to_spans = OTLPSpanExporter(f"{url}/v1/traces", timeout=ANSWER_SECONDS, compression=Compression.Gzip, session=session)
        to_logs = OTLPLogExporter(f"{url}/v1/logs", timeout=ANSWER_SECONDS, compression=Compression.Gzip, session=session)
        self.spans = Outbox[ReadableSpan](Signal.TRACES, MOST_SPANS, session, to_spans, counts)
        self.log_records = Outbox[ReadableLogRecord](Signal.LOGS, MOST_LOG_RECORDS, session, to_logs, counts)
        self._outboxes = (self.log_records, self.spans)
        self._notes: BoundedQueue[str] = BoundedQueue(MOST_NOTES, "notes about OTLP")
        self._said: set[tuple[Signal, int]] = set()
        self._pause = self._not_before = 0.0
        self._is_away = False

    def notes(self) -> list[str]:
        """The notes for the user since the last call."""
        return self._notes.read()

    def step(self, now: float) -> bool:
        """Sends what waits, until the collector does not take it. Findings are sent first.

        Args:
            now: A monotonic time, s.

        Returns:
            Whether nothing is left.
        """
        for outbox in self._outboxes:
            while len(outbox) and now >= self._not_before:
                if outbox.send():
                    self._answered(outbox.signal)
                else:
                    self._wait(now)
        return not any(len(outbox) for outbox in self._outboxes)

    def _answered(self, signal: Signal) -> None:
        status, self._pause = self._session.status, 0.0
        if not 200 <= status < 300 and (signal, status) not in self._said:
            self._said.add((signal, status))
            self._notes.append(f"The collector at {self.url} refuses {signal} ({status}): what it refuses is lost.")
        elif self._is_away:
            self._notes.append(f"The collector at {self.url} answers again.")
        self._is_away = False

    def _wait(self, now: float) -> None:
        session = self._session
        self._pause = min(max(FIRST_PAUSE, 2 * self._pause), LONGEST_PAUSE)
        self._not_before = now + max(self._pause, min(session.retry_after, LONGEST_REQUESTED_PAUSE))
        if not self._is_away:
            self._is_away = True
            why = f"answered {session.status}" if session.status else f"does not take data ({session.problem})"
            most = f"{MOST_SPANS:,} spans and {MOST_LOG_RECORDS:,} findings"
            self._notes.append(f"The collector at {self.url} {why}: {most} wait for it at most.")

    def end(self) -> None:
        """The run ends: there are no pauses any more."""
        self._not_before = 0.0

    def give_up(self) -> int:
        """Sheds what waits. Returns its number."""
        for outbox in self._outboxes:
            outbox.end()
        return sum(outbox.give_up() for outbox in self._outboxes)
