# SPDX-License-Identifier: Apache-2.0
"""Reads legacy rules in a thread of its own during tracing.

A snapshot is of one generation. Its text is used only if the blob is the same before and after the run of iptables-save. That
run takes seconds on a large node. Where rules are replaced more often than that, the blob is read alone, and the texts are made
of it (tracer/rules/iptables/entry_text.py): otherwise rules that are replaced during the run would not be known. The events of
the kernel side show which generation it is (tracer/rules/iptables/generations.py).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tracer.model.rule import Rule
from tracer.node import netns
from tracer.rules.iptables import save_join, sockopt
from tracer.rules.iptables.blob import BlobTable
from tracer.rules.iptables.entry import MalformedTable
from tracer.rules.iptables.table import Table
from tracer.rules.unprinted_rules import print_again_at
from tracer.rules.xt_options import has_options
from tracer.util.lru_dict import LruDict
from tracer.util.reading_progress import rules_read
from tracer.util.worker import Worker, user_warnings

_log = logging.getLogger(__name__)

TRIES = 3
"""Attempts to read a table."""
TOTAL_BYTES = 256 << 20
"""Limit for the tables of all namespaces except the node's and our own, bytes, so that others cannot use up the memory."""
SIZES_KEPT = 8192
"""Most tables with a known size. A table of a namespace that was removed is forgotten when the room is needed."""
MAX_CHECKED = 64
"""Most namespaces that are checked for their removal before one table is read."""


@dataclass(frozen=True)
class TableRequest:
    """A table to read.

    Attributes:
        netns: Inode of the network namespace.
        family: "ip" or "ip6".
        table: Its name. "" = all present tables, with one snapshot for each and an empty one for this request at the end.
    """

    netns: int
    family: str
    table: str


@dataclass(frozen=True)
class TableSnapshot:
    """The result of a request.

    Attributes:
        request: The table.
        thread: Thread id (of the kernel) of the reader.
        began: Begin of reading, ns, CLOCK_MONOTONIC.
        ended: End of reading, ns, CLOCK_MONOTONIC. The table was in force between the two.
        table: The table, None = it could not be read.
        rules: Its rules, by offset in the blob.
        why: Why it could not be read, "" = no failure.
        blob: The blob as it was read; kept only by a reader with `keep`.
        text: The output of iptables-save, None = not available; kept only by a reader with `keep`.
    """

    request: TableRequest
    thread: int
    began: int
    ended: int
    table: Table | None = None
    rules: Mapping[int, Rule] = field(default_factory=dict)
    why: str = ""
    blob: bytes | bytearray = field(default=b"", repr=False)
    text: str | None = field(default=None, repr=False)


class TableReader:
    """Reads requested tables in a thread, in order.

    Args:
        path: Gives the file of a network namespace by its inode. Raises LookupError.
        keep: Whether snapshots keep the blob and the text as they were read.
    """

    def __init__(self, path: Callable[[int], Path] = netns.find, keep: bool = False) -> None:
        self._path, self._keep, self._closing = path, keep, False
        self._sizes: LruDict[TableRequest, int] = LruDict(SIZES_KEPT, "sizes of tables")
        self._unprinted_until: LruDict[TableRequest, float] = LruDict(SIZES_KEPT, "tables read without iptables-save")
        self._own_namespaces = {_inode(Path(f"/proc/{pid}/ns/net")) for pid in ("1", "self")}
        self._requests: queue.SimpleQueue[TableRequest | None] = queue.SimpleQueue()
        self._snapshots: queue.SimpleQueue[TableSnapshot] = queue.SimpleQueue()
        self._thread = Worker("rules", self._work).start()

    def request(self, request: TableRequest) -> None:
        """Queues a table to be read."""
        self._requests.put(request)

    def read(self) -> list[TableSnapshot]:
        """Snapshots read since the last call."""
        snapshots = []
        while True:
            try:
                snapshots.append(self._snapshots.get_nowait())
            except queue.Empty:
                return snapshots

    def close(self) -> None:
        """Waits for the table being read; other requests are dropped."""
        self._closing = True
        self._requests.put(None)
        self._thread.join(5)

    def _work(self) -> bool:
        request = self._requests.get()
        if request is None or self._closing:
            return False
        with rules_read.reading():
            for table in [] if request.table else self._tables(request):
                self._snapshots.put(self._snapshot(TableRequest(request.netns, request.family, table)))
            self._snapshots.put(self._snapshot(request) if request.table else TableSnapshot(request, 0, 0, 0))
        return True

    def _tables(self, request: TableRequest) -> list[str]:
        try:
            with netns.entered(self._path(request.netns)):
                return sockopt.present(request.family)
        except (OSError, LookupError):
            self._forget(request.netns)
            return []
        except Exception as e:
            user_warnings.add_failure("listing a namespace's legacy tables", e)
            return []

    def _snapshot(self, request: TableRequest) -> TableSnapshot:
        """The snapshot, also after an unexpected error: the request is waited for."""
        began = time.monotonic_ns()
        try:
            found = self._read(request)
            _log.debug("%s read in %.1f ms %s", request, (time.monotonic_ns() - began) / 1e6, found.why)
            return found
        except Exception as e:
            user_warnings.add_failure(f"reading the legacy table {request.table} of network namespace {request.netns}", e)
            why = f"they could not be read ({type(e).__name__}: {e})"
            return TableSnapshot(request, threading.get_native_id(), began, time.monotonic_ns(), why=why)

    def _max_bytes(self, request: TableRequest) -> int:
        """Most bytes that a table may have."""
        if request.netns in self._own_namespaces:
            return sockopt.MOST_BYTES
        if self._room(request) < sockopt.MOST_BYTES:
            self._forget_removed()
        return min(sockopt.MOST_BYTES, self._room(request))

    def _room(self, request: TableRequest) -> int:
        return TOTAL_BYTES - sum(self._sizes.values()) + self._sizes.get(request, 0)

    def _forget_removed(self) -> None:
        """Forgets the sizes of tables of namespaces that were removed, beginning with the tables read longest ago."""
        for inode in list(dict.fromkeys(request.netns for request in self._sizes))[:MAX_CHECKED]:
            try:
                self._path(inode)
            except LookupError:
                self._forget(inode)

    def _forget(self, inode: int) -> None:
        for request in [w for w in self._sizes if w.netns == inode]:
            del self._sizes[request]

    def _read(self, request: TableRequest) -> TableSnapshot:
        why = ""
        thread = threading.get_native_id()
        began = time.monotonic_ns()
        try:
            path = self._path(request.netns)
        except LookupError:
            self._forget(request.netns)
            return TableSnapshot(request, thread, began, began, why="the network namespace is gone")
        for _ in range(TRIES):
            began = time.monotonic_ns()
            try:
                with netns.entered(path):
                    found = self._read_here(request)
            except sockopt.TooManyEntries as e:
                self._sizes.pop(request, None)
                why = f"they are not read: {e}"
                where = f"table {request.table} of {request.family}tables in network namespace {request.netns} ({path})"
                user_warnings.add(f"The rules of {where} are not read and not shown for its packets: {e}.", request)
                break
            except (OSError, MalformedTable) as e:
                why = f"they could not be read ({e})"
                continue
            if request.netns not in self._own_namespaces:
                self._sizes[request] = len(found.blob)
            kept = (found.blob, found.text) if self._keep else (b"", None)
            return TableSnapshot(request, thread, began, found.ended, found.table, found.rules, "", *kept)
        return TableSnapshot(request, thread, began, time.monotonic_ns(), why=why)

    def _read_here(self, request: TableRequest) -> TableReading:
        began = time.monotonic()
        prints = began >= self._unprinted_until.get(request, 0)
        found = read_here(request, self._max_bytes(request), prints)
        if found.has_changed:
            self._unprinted_until[request] = print_again_at(began)
        return found


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


class TableReading(NamedTuple):
    """A table as it was read.

    Attributes:
        table: The table.
        rules: Its rules, by offset in the blob.
        blob: The blob.
        text: The output of iptables-save, None = not available.
        ended: A time when the table was still in force, ns, CLOCK_MONOTONIC.
        has_changed: Whether it changed while iptables-save printed it.
    """

    table: Table
    rules: Mapping[int, Rule]
    blob: bytearray
    text: str | None
    ended: int
    has_changed: bool


def read_here(request: TableRequest, max_bytes: int = sockopt.MOST_BYTES, prints: bool = True) -> TableReading:
    """Reads a table of this thread's namespace. If the table changes while iptables-save prints it, it has no text.

    Args:
        request: The table; its namespace is not looked at.
        max_bytes: Most bytes that it may have.
        prints: Whether iptables-save prints it. It does in any case if rules of the table have no text otherwise.

    Raises:
        OSError: The table cannot be read, or does not exist any more.
        TooManyEntries: It exceeds the limits.
        MalformedTable: Its blob is malformed.
    """
    family, name = request.family, request.table
    if name not in sockopt.present(family):
        raise OSError(f"there is no table {name} any more")
    raw = sockopt.read(family, name, max_bytes)
    ended = time.monotonic_ns()
    table = BlobTable(family, name, *raw)
    text = _printed(table) if prints or not has_options(table.extensions()) else None
    has_changed = text is not None and not _is_still(table, max_bytes)
    if has_changed:
        text = None
    elif text is not None:
        ended = time.monotonic_ns()
    return TableReading(table, join_text(table, text), raw.blob, text, ended, has_changed)


def _printed(table: BlobTable) -> str | None:
    """What iptables-save prints of a table; None = it fails, or is missing."""
    with rules_read.table(sum(table.size(chain) for chain in table.chains)) as add:
        try:
            return sockopt.save(table.family, table.name, lambda printed: add(printed.count(b"\n-A ")))
        except OSError:
            return None


def _is_still(table: BlobTable, max_bytes: int) -> bool:
    """Whether the kernel still has the table as it was read."""
    try:
        return table.is_same(sockopt.read(table.family, table.name, max_bytes).blob)
    except OSError:
        return False


def join_text(table: Table, text: str | None) -> Mapping[int, Rule]:
    """The rules of a table by their offset, with the text of iptables-save if it fits the table."""
    try:
        return save_join.SavedRules(table, text)
    except save_join.SaveMismatch:
        # This iptables-save does not know all of these rules: the rules are the same, but have no text.
        return save_join.SavedRules(table, None)
