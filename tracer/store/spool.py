# SPDX-License-Identifier: Apache-2.0
"""The spool: what a node has for the store and the store has not yet, in a directory of the local disk.

Each run has a directory of its own below the spool, and holds a lock on it. A directory without a lock is that of a run that
was killed: the next run of this node takes over what is in it. The spool has a bound; beyond it the oldest segments are
dropped, and their rows counted.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tracer.store import segment
from tracer.store.segment import COMPRESSED, SUFFIX, Segment, StoredRow
from tracer.util.evictions import evictions

SPOOL_BYTES = 1 << 30
"""Default bound of the spool, bytes."""
FULL = "the spool was full"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, order=True)
class SpoolFile:
    """A segment of the spool. age: time of its last change, ns; the oldest is first. size: bytes."""

    age: int
    path: Path
    size: int

    @property
    def stem(self) -> str:
        """Its name without the suffix."""
        return self.path.name.partition(".")[0]


class Spool:
    """The spool of one run. One thread appends and rotates, another one reads and removes files.

    Args:
        directory: The directory of all runs of this machine.
        run: Name of this run, unique.
        node: Name of the node.
        most_bytes: Bound of all files in it, bytes.

    Raises:
        OSError: The directory cannot be used.
    """

    def __init__(self, directory: Path, run: str, node: str, most_bytes: int = SPOOL_BYTES) -> None:
        self.directory, self._run, self._node, self._most = directory, run, node, most_bytes
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._own = directory / run
        self._own.mkdir(mode=0o700)
        self._locks = {self._own: _locked(self._own)}
        self._number = 0
        self._open: Segment | None = None
        self._lost: Counter[tuple[str, str]] = Counter()
        self._changing = threading.Lock()

    def adopt(self) -> int:
        """Takes over the directories of runs that ended without uploading everything. Returns their number."""
        for path in sorted(self.directory.iterdir()):
            if path not in self._locks and path.is_dir() and not path.is_symlink():
                with suppress(OSError):
                    self._locks[path] = _locked(path)
                    for packed in path.glob(f"*{COMPRESSED}"):  # killed between the two steps of a compression
                        packed.with_name(packed.name.removesuffix(COMPRESSED) + SUFFIX).unlink(missing_ok=True)
        return len(self._locks) - 1

    def append(self, rows: Sequence[StoredRow]) -> None:
        """Writes a batch of rows to the open segment. Raises OSError when the disk does not take it."""
        with self._changing:  # a new segment must not look like a closed one
            if self._open is None:
                self._number += 1
                self._open = Segment(self._own / f"{self._number:06d}{SUFFIX}", self._run, self._node)
        self._open.append(rows)

    @property
    def open_bytes(self) -> int:
        """Size of the open segment, bytes; 0 = there is none."""
        return self._open.size if self._open else 0

    def rotate(self) -> None:
        """Ends the open segment. Raises OSError when the disk does not take the end of it; what was written is kept."""
        try:
            if self._open:
                self._open.close()
        finally:
            with self._changing:
                self._open = None

    def files(self) -> list[SpoolFile]:
        """The closed segments, the oldest first."""
        with self._changing:
            current = self._open.path if self._open else None
            paths = [path for own in self._locks for path in (*own.glob(f"*{SUFFIX}"), *own.glob(f"*{COMPRESSED}"))]
        found = []
        for path in paths:
            with suppress(FileNotFoundError):
                about = path.lstat()
                if path != current and not path.name.startswith("."):
                    found.append(SpoolFile(about.st_mtime_ns, path, about.st_size))
        return sorted(found)

    def compress(self) -> None:
        """Compresses the closed segments that are not compressed yet."""
        for file in self.files():
            if file.path.name.endswith(SUFFIX):
                try:
                    segment.compress(file.path)
                except OSError as e:
                    _log.debug("a segment is not compressed", exc_info=e)
                    return

    def remove(self, file: SpoolFile) -> None:
        """Removes a segment that the store has."""
        file.path.unlink(missing_ok=True)

    def enforce_bound(self) -> None:
        """Drops the oldest segments while the spool is larger than its bound, and counts their rows."""
        files = self.files()
        size = sum(file.size for file in files) + self.open_bytes
        for file in files:
            if size <= self._most:
                return
            for table, rows in rows_of(file).items():
                self.count_lost(table, FULL, rows)
            self.remove(file)
            size -= file.size

    def count_lost(self, table: str, why: str, rows: int = 1) -> None:
        """Counts rows that the store will not get. table: theirs; "" = not known. why: a clause."""
        evictions.add("rows for the store", rows)
        with self._changing:
            self._lost[table, why] += rows

    def read_lost(self) -> dict[tuple[str, str], int]:
        """The rows that were lost since the last call, by (table, cause)."""
        with self._changing:
            lost, self._lost = self._lost, Counter()
        return dict(lost)

    def close(self) -> int:
        """Ends the run. Segments stay for the next run of this machine. Returns the number of those that stay."""
        with suppress(OSError):
            self.rotate()
        left = self.files()
        for directory, lock in self._locks.items():
            if not any(file.path.parent == directory for file in left):
                shutil.rmtree(directory, ignore_errors=True)
            os.close(lock)
        self._locks = {}
        return len(left)


def _locked(directory: Path) -> int:
    """The descriptor of the lock of a run's directory. Raises OSError: another process holds it."""
    fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def rows_of(file: SpoolFile) -> dict[str, int]:
    """The number of rows of a segment, by table; {"": 1} for one that cannot be read."""
    with suppress(OSError):
        content = segment.read(file.path)
        if content:
            return dict(Counter(row.table for row in content.rows))
    return {"": 1}
