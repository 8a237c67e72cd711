# SPDX-License-Identifier: Apache-2.0
"""A segment: rows on the local disk that are not in a Parquet file yet, as lines of JSON.

The first line names the run and the node. Then each batch is a line with the number of its rows, and a line for each row. A
batch is written by one call, so after `kill -9` at most the last one is cut off, and its first line says how many rows it had.
A closed segment is compressed, if the disk has room for that.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from tracer.analysis.table_schema import Value
from tracer.store.stored_tables import VERSION
from tracer.util.new_file import fresh

SUFFIX, COMPRESSED = ".segment", ".segment.gz"
COMPRESSION_LEVEL = 2
MOST_LINE = 32 << 20
"""Longest line that is read, bytes."""


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row on its way to the store. at: time of the event, us since the epoch."""

    table: str
    at: int
    values: tuple[Value, ...]


@dataclass
class SegmentContent:
    """What a segment has.

    Attributes:
        run: The run that wrote it.
        node: Its node.
        version: Version of its rows.
        rows: Its rows.
        lost: Rows of a batch that was cut off.
    """

    run: str
    node: str
    version: int
    rows: list[StoredRow] = field(default_factory=list)
    lost: int = 0


class Segment:
    """A segment that is being written. Raises OSError where the disk does not take a batch; nothing of it stays then.

    Attributes:
        path: Its file.
        rows: Number of rows.
        size: Bytes.
    """

    def __init__(self, path: Path, run: str, node: str) -> None:
        self.path, self.rows, self.size = path, 0, 0
        self._fd = fresh(path)
        try:
            self._write((json.dumps({"version": VERSION, "run": run, "node": node}) + "\n").encode())
        except OSError:
            self.remove()
            raise

    def append(self, rows: Sequence[StoredRow]) -> None:
        """Writes a batch."""
        lines = [json.dumps(len(rows)), *(json.dumps((row.table, row.at, row.values), separators=(",", ":")) for row in rows)]
        self._write(("\n".join(lines) + "\n").encode())
        self.rows += len(rows)

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            os.ftruncate(self._fd, self.size)
            os.lseek(self._fd, self.size, os.SEEK_SET)
            raise
        self.size += len(data)

    def close(self) -> None:
        """Ends it. It is on the disk then, also after a power failure."""
        try:
            os.fsync(self._fd)
        finally:
            os.close(self._fd)

    def remove(self) -> None:
        """Removes it."""
        os.close(self._fd)
        self.path.unlink(missing_ok=True)


def compress(path: Path) -> None:
    """Replaces a closed segment by a compressed one. Raises OSError where the disk has no room; the segment stays then."""
    target = path.with_name(path.name.removesuffix(SUFFIX) + COMPRESSED)
    temporary = target.with_name(f".{target.name}")
    temporary.unlink(missing_ok=True)
    try:
        with open(path, "rb") as source, open(fresh(temporary), "wb") as file:
            with gzip.GzipFile("", "wb", COMPRESSION_LEVEL, file, 0) as packed:
                shutil.copyfileobj(source, packed, 1 << 20)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    path.unlink()


def read(path: Path) -> SegmentContent | None:
    """Reads a segment, as far as it is whole; None = it has not even its first line. Raises OSError."""
    with gzip.open(path, "rb") if path.name.endswith(COMPRESSED) else open(path, "rb") as file:
        lines = _lines(cast(BinaryIO, file))
        head = _decoded(next(lines, b""))
        if not isinstance(head, dict):
            return None
        content = SegmentContent(str(head.get("run", "")), str(head.get("node", "")), int(head.get("version", 0)))
        for line in lines:
            value = _decoded(line)
            if isinstance(value, int) and not content.lost and value >= 0:
                content.lost = value
            elif isinstance(value, list) and content.lost and len(value) == 3 and isinstance(value[1], int):
                content.rows.append(StoredRow(str(value[0]), value[1], tuple(value[2])))
                content.lost -= 1
            else:
                # A line that was cut off: the rest of its batch, or a batch of which not even the number of rows is there.
                content.lost = max(content.lost, 1)
                break
        return content


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yields lines up to the end of the file, or up to where it is damaged."""
    try:
        while line := file.readline(MOST_LINE):
            yield line
    except (EOFError, zlib.error, gzip.BadGzipFile):
        yield b""


def _decoded(line: bytes) -> object:
    """The value of a line; None for one that is cut off or no JSON."""
    if not line.endswith(b"\n"):
        return None
    try:
        return cast(object, json.loads(line))
    except (ValueError, RecursionError):
        return None
