# SPDX-License-Identifier: Apache-2.0
"""Captures of several nodes in one directory, a file for each node, written from the records that the agents send."""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from tracer.capture.format.codec import pack
from tracer.capture.format.schema import Record
from tracer.capture.record.capture_files import CaptureFiles, RotationLimits
from tracer.errors import OutputNotWritten
from tracer.protocol.capture_pieces import CapturePieces, CaptureTransaction

CLOCK_SECONDS = 60.0
"""Interval at which the clock of a node is written into its capture, s."""


class NodeCaptures:
    """Writes the captures.

    Args:
        directory: Where they are written; created if it does not exist.
        limits: When the file of a node ends.

    Raises:
        OutputNotWritten: The directory cannot be made; by `feed`: a file cannot be written.
    """

    def __init__(self, directory: Path, limits: RotationLimits) -> None:
        self._directory, self._limits = directory, limits
        self._pieces: dict[str, CapturePieces] = {}
        self._files: dict[str, CaptureFiles] = {}
        self._clocks: dict[str, tuple[int, int]] = {}
        self._clocks_written: dict[str, float] = {}
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as e:
            raise OutputNotWritten(f"The directory {directory} cannot be made: {e.strerror}.") from e

    def feed(self, node: str, piece: bytes) -> None:
        """Takes a piece of a node's capture, and writes the transaction that it completes.

        Raises:
            MalformedFrame: It is no piece of a capture.
            OutputNotWritten: It cannot be written.
        """
        found = self._pieces.setdefault(node, CapturePieces()).feed(piece)
        if found:
            try:
                self._write(node, found)
            except (sqlite3.Error, OSError) as e:
                raise OutputNotWritten(f"The capture of {node} cannot be written: {e}.") from e

    def note_clock(self, node: str, offset: int, error: int) -> None:
        """Notes what is added to times of a node's packets to get times of this machine, and its largest error, ns."""
        self._clocks[node] = offset, error

    def _write(self, node: str, transaction: CaptureTransaction) -> None:
        files = self._files.get(node)
        if files is None:
            if transaction.meta is None:
                return
            files = self._files[node] = CaptureFiles(self._directory / f"{file_name(node)}.k8st", self._limits)
            files.describe(transaction.meta | {"ring": self._limits.ring})
        files.insert([*self._clock_records(node, transaction), *transaction.records], transaction.batch)

    def _clock_records(self, node: str, transaction: CaptureTransaction) -> list[tuple[int, str, str, bytes]]:
        """The record of the node's clock if it is known and due. It stands before the other records: END is the last one."""
        clock, written = self._clocks.get(node), self._clocks_written.get(node)
        batch = transaction.batch[0] if transaction.batch else max((row[0] for row in transaction.records), default=0)
        if clock is None or (written is not None and time.monotonic() - written < CLOCK_SECONDS):
            return []
        self._clocks_written[node] = time.monotonic()
        return [(batch, Record.CLOCK.value, "", pack(list(clock)))]

    def close(self) -> list[Path]:
        """Ends all files. Returns their names."""
        names: list[Path] = []
        for files in self._files.values():
            with suppress(sqlite3.Error, OSError):
                files.close()
            names += files.names
        return names


def file_name(node: str) -> str:
    """The name of a node as a file has it: without characters that mean something in a path."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", node).lstrip(".") or "node"
