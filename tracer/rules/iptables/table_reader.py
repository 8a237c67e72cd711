# SPDX-License-Identifier: Apache-2.0
"""Reads legacy rules in a thread of its own, beside the tracing.

What was read is one generation: the same blob before and after iptables-save printed it. Which generation that is, the
kernel side tells (tracer/rules/iptables/generations.py).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tracer.model.rule import Rule
from tracer.node import netns
from tracer.rules.iptables import save_join, sockopt
from tracer.rules.iptables.blob import BlobTable
from tracer.rules.iptables.entry import MalformedTable
from tracer.rules.iptables.table import Table
from tracer.util.worker import Worker, user_warnings

TRIES = 3
TOTAL_BYTES = 256 << 20
"""Of the tables of all namespaces but the node's and our own, which others cannot use up."""


@dataclass(frozen=True)
class TableRequest:
    """A table to read. netns: inode. table: "" = all that are there, each a reading of its own, and one for this at the end."""

    netns: int
    family: str
    table: str


@dataclass(frozen=True)
class TableSnapshot:
    """What came of it. thread: the kernel's number of the thread that read, from `began` to `ended` (ns, CLOCK_MONOTONIC).

    table: None when it could not be read, and `why` says why not. rules: by offset in the blob. blob, text: what both were made
    of; kept only for whoever asks for it.
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
    """A thread that reads what it is asked for, in order. path: of a file that leads to a namespace, or LookupError.

    keep: readings hold the blob and the text as they were read.
    """

    def __init__(self, path: Callable[[int], Path] = netns.find, keep: bool = False) -> None:
        self._path, self._keep, self._closing = path, keep, False
        self._sizes: dict[TableRequest, int] = {}
        self._first = {_inode(Path(f"/proc/{pid}/ns/net")) for pid in ("1", "self")}
        self._asked: queue.SimpleQueue[TableRequest | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[TableSnapshot] = queue.SimpleQueue()
        self._thread = Worker("rules", self._work).start()

    def request(self, request: TableRequest) -> None:
        self._asked.put(request)

    def read(self) -> list[TableSnapshot]:
        """What has been read since the last call."""
        readings = []
        while True:
            try:
                readings.append(self._done.get_nowait())
            except queue.Empty:
                return readings

    def close(self) -> None:
        """Waits for what is being read; what else was asked for is not read any more."""
        self._closing = True
        self._asked.put(None)
        self._thread.join(5)

    def _work(self) -> bool:
        wanted = self._asked.get()
        if wanted is None or self._closing:
            return False
        for table in [] if wanted.table else self._tables(wanted):
            self._done.put(self._answer(TableRequest(wanted.netns, wanted.family, table)))
        self._done.put(self._answer(wanted) if wanted.table else TableSnapshot(wanted, 0, 0, 0))
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

    def _answer(self, request: TableRequest) -> TableSnapshot:
        """The reading, also when it fails in a way that is not foreseen: somebody waits for it."""
        began = time.monotonic_ns()
        try:
            return self._read(request)
        except Exception as e:
            user_warnings.add_failure(f"reading the legacy table {request.table} of network namespace {request.netns}", e)
            why = f"they could not be read ({type(e).__name__}: {e})"
            return TableSnapshot(request, threading.get_native_id(), began, time.monotonic_ns(), why=why)

    def _room(self, request: TableRequest) -> int:
        """Bytes that a table may have."""
        if request.netns in self._first:
            return sockopt.MOST_BYTES
        held = sum(size for other, size in self._sizes.items() if other != request)
        return min(sockopt.MOST_BYTES, TOTAL_BYTES - held)

    def _forget(self, inode: int) -> None:
        for wanted in [w for w in self._sizes if w.netns == inode]:
            del self._sizes[wanted]

    def _read(self, request: TableRequest) -> TableSnapshot:
        why = "they changed while they were read"
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
                    found = read_here(request, self._room(request))
            except sockopt.TooManyEntries as e:
                self._sizes.pop(request, None)
                why = f"they are not read: {e}"
                where = f"table {request.table} of {request.family}tables in network namespace {request.netns} ({path})"
                user_warnings.add(f"The rules of {where} are not read, and not told of its packets: {e}.", request)
                break
            except (OSError, MalformedTable) as e:
                why = f"they could not be read ({e})"
                continue
            if found:
                table, rules, blob, printed = found
                if request.netns not in self._first:
                    self._sizes[request] = len(blob)
                kept = (blob, printed) if self._keep else (b"", None)
                return TableSnapshot(request, thread, began, time.monotonic_ns(), table, rules, "", *kept)
        return TableSnapshot(request, thread, began, time.monotonic_ns(), why=why)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return 0


def read_here(
    request: TableRequest, room: int = sockopt.MOST_BYTES
) -> tuple[Table, Mapping[int, Rule], bytearray, str | None] | None:
    """The table in this thread's namespace, its rules, and what they were made of; None when it changed meanwhile.

    room: bytes that it may have. Raises OSError, TooManyEntries, MalformedTable.
    """
    family, name = request.family, request.table
    if name not in sockopt.present(family):
        raise OSError(f"there is no table {name} any more")
    raw = sockopt.read(family, name, room)
    table = BlobTable(family, name, *raw)
    try:
        text = sockopt.save(family, name)
    except OSError:
        text = None
    if not table.is_same(sockopt.read(family, name, room).blob):
        return None
    return table, joined(table, text), raw.blob, text


def joined(table: Table, text: str | None) -> Mapping[int, Rule]:
    """The rules of a table by their offset, with the text that iptables-save printed, if that is the table's."""
    try:
        return save_join.SavedRules(table, text)
    except save_join.SaveMismatch:
        # An iptables-save that does not know these rules well enough: they are the same, but have no text.
        return save_join.SavedRules(table, None)
