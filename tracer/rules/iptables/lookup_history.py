# SPDX-License-Identifier: Apache-2.0
"""Look-ups of legacy tables: which thread found which blob. So it is known what the reader read, and who replaced a table."""

from __future__ import annotations

from tracer.events.table_trace import TableLookup
from tracer.rules.iptables.table_reader import TableSnapshot
from tracer.util.bounded_queue import BoundedQueue
from tracer.util.lru_dict import LruDict

LOOKUPS_KEPT = 65536
"""Most look-ups kept while a table is being read."""
THREADS_KEPT = 4096
"""Most threads kept with their last look-up."""


class LookupHistory:
    """Look-ups while tables are being read, and the last one of each thread."""

    def __init__(self) -> None:
        self._lookups: BoundedQueue[TableLookup] = BoundedQueue(LOOKUPS_KEPT, "look-ups of tables")
        self._lost_until = 0
        self._last_lookup: LruDict[int, TableLookup] = LruDict(THREADS_KEPT, "threads that look up tables")

    def add(self, lookup: TableLookup) -> None:
        self._last_lookup[lookup.thread] = lookup
        if len(self._lookups) == LOOKUPS_KEPT:
            self._lost_until = self._lookups[0].time
        self._lookups.append(lookup)

    def last(self, thread: int) -> TableLookup | None:
        """The last look-up of a thread."""
        return self._last_lookup.get(thread)

    def of(self, snapshot: TableSnapshot) -> list[TableLookup]:
        """The look-ups that the reading of a table made, in their order; empty if some of them may have been evicted."""
        request = snapshot.request
        if snapshot.began <= self._lost_until:
            return []
        return [
            x for x in self._lookups
            if x.thread == snapshot.thread and snapshot.began <= x.time <= snapshot.ended
            and (x.netns, x.family, x.table) == (request.netns, request.family, request.table)
        ]  # fmt: skip

    def clear(self) -> None:
        """Forgets the look-ups, but not the last one of each thread. To be called when no table is being read."""
        self._lookups.clear()
