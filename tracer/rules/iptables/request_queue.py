# SPDX-License-Identifier: Apache-2.0
"""Legacy tables that are being read in the background, those that were read, and why others were not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from tracer.rules.iptables.table_reader import TableRequest, TableSnapshot
from tracer.util.evictions import evictions
from tracer.util.lru_dict import LruDict

TABLES_KEPT = 8192
"""Most tables kept as read, and most kept with the reason why they were not read."""
MAX_REQUESTS = 4096
"""Most tables that wait to be read. A table beyond that is requested when a packet meets it again."""


class TableSource(Protocol):
    """Reads tables in the background: those of this machine, or those of a capture."""

    def request(self, request: TableRequest) -> None:
        """Queues a table to be read."""

    def read(self) -> list[TableSnapshot]:
        """Snapshots read since the last call."""
        ...

    def close(self) -> None:
        """Ends the reading."""


class SentRequests(NamedTuple):
    """The requests for a table that had been sent at one time and not all answered.

    Attributes:
        request: The table.
        period: Number of the period in which the table has requests without an answer.
        sent: How many had been sent in that period.
    """

    request: TableRequest
    period: int
    sent: int


@dataclass
class _Period:
    """A time in which a table has requests without an answer.

    Attributes:
        number: Number of the period, counted for all tables.
        sent: Requests sent in it.
        answered: Requests answered in it, in the order in which they were sent.
    """

    number: int
    sent: int = 0
    answered: int = 0


class RequestQueue:
    """The requests to the reader of tables.

    Args:
        reader: Reads tables in the background.
        shed: Counts under "tables to read" the tables that were not requested because of the bound.
    """

    def __init__(self, reader: TableSource, shed: Counter[str]) -> None:
        self._reader, self._shed = reader, shed
        self._pending: dict[TableRequest, _Period] = {}
        self._periods = 0
        self._failures: LruDict[TableRequest, str] = LruDict(TABLES_KEPT, "tables that were not read")
        self._tables_read: LruDict[TableRequest, None] = LruDict(TABLES_KEPT, "tables that were read")
        self._waiting_snapshots: list[TableSnapshot] = []

    def __contains__(self, request: TableRequest) -> bool:
        """Whether the table is being read."""
        return request in self._pending

    def __len__(self) -> int:
        """Number of tables that are being read."""
        return len(self._pending)

    def request(self, request: TableRequest) -> bool:
        """Requests a table, unless it is already being read. Returns False if too many tables wait to be read."""
        self._tables_read[request] = None
        return request in self._pending or self._start(request)

    def request_again(self, request: TableRequest) -> None:
        """Requests a table that was replaced, if it was requested before."""
        # One request may be under way; a second one reads the table as it is after this change.
        period = self._pending.get(request)
        if request in self._tables_read and (not period or period.sent - period.answered < 2):
            self._start(request)

    def expect(self, request: TableRequest) -> None:
        """Announces a snapshot that was requested elsewhere. Beyond MAX_REQUESTS tables it is not waited for."""
        if request in self._pending or len(self._pending) < MAX_REQUESTS:
            self._add(request)

    def under_way(self, request: TableRequest) -> SentRequests | None:
        """The requests for a table that are not answered, None = none."""
        period = self._pending.get(request)
        return SentRequests(request, period.number, period.sent) if period else None

    def are_answered(self, sent: SentRequests) -> bool:
        """Whether the snapshots of these requests have arrived."""
        period = self._pending.get(sent.request)
        return not period or period.number != sent.period or period.answered >= sent.sent

    def read(self) -> list[TableSnapshot]:
        """The snapshots that had been read at the previous call. So the look-ups of their readings have been drained."""
        snapshots, self._waiting_snapshots = self._waiting_snapshots, self._reader.read()
        return snapshots

    def answer(self, request: TableRequest) -> None:
        """Ends one request for a table: its snapshot has arrived.

        The reader answers requests in order. So while one for all tables of a namespace is under way, the snapshots that come
        are its own, and not those of tables that were requested after it.
        """
        period, all_tables = self._pending.get(request), self._pending.get(replace(request, table=""))
        if period and (period is all_tables or not all_tables or period.number < all_tables.number):
            period.answered += 1
            if period.answered >= period.sent:
                del self._pending[request]
        if request.table:
            self._tables_read[request] = None

    def fail(self, request: TableRequest, why: str) -> None:
        """Keeps why a table was not read."""
        self._failures[request] = why

    def failure(self, request: TableRequest) -> str:
        """Why a table was not read."""
        return self._failures.get(request, "the rules have not been read")

    def close(self) -> None:
        """Ends the reader's thread."""
        self._reader.close()

    def _start(self, request: TableRequest) -> bool:
        if len(self._pending) >= MAX_REQUESTS:
            self._shed["tables to read"] += 1
            evictions.add("tables to read")
            return False
        self._add(request)
        self._reader.request(request)
        return True

    def _add(self, request: TableRequest) -> None:
        period = self._pending.get(request)
        if not period:
            self._periods += 1
            period = self._pending[request] = _Period(self._periods)
        period.sent += 1
