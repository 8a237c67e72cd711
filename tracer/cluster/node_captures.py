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
        self._clocks_written: dict[str, float] = {}
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as e:
            raise OutputNotWritten(f"The directory {directory} cannot be made: {e.strerror}.") from e

    def feed(self, node: str, piece: bytes, offset: int | None = None, error: int = 0) -> None:
        """Takes a piece of a node's capture, and writes the transaction that it completes.

        Args:
            node: The node.
            piece: The piece.
            offset: What is added to times of the node's packets to get times of this machine, ns; None = not known.
            error: Largest error of the offset, ns.

        Raises:
            MalformedFrame: It is no piece of a capture.
            OutputNotWritten: It cannot be written.
        """
        found = self._pieces.setdefault(node, CapturePieces()).feed(piece)
        if found:
            try:
                self._write(node, found, offset, error)
            except (sqlite3.Error, OSError) as e:
                raise OutputNotWritten(f"The capture of {node} cannot be written: {e}.") from e

    def _write(self, node: str, transaction: CaptureTransaction, offset: int | None, error: int) -> None:
        files = self._files.get(node)
        if files is None:
            if transaction.meta is None:
                return
            files = self._files[node] = CaptureFiles(self._directory / f"{file_name(node)}.k8st", self._limits)
            files.describe(transaction.meta | {"ring": self._limits.ring})
        records = list(transaction.records)
        if offset is not None and time.monotonic() - self._clocks_written.get(node, -CLOCK_SECONDS) >= CLOCK_SECONDS:
            self._clocks_written[node] = time.monotonic()
            first = transaction.batch[0] if transaction.batch else 0
            batch = min((row[0] for row in records), default=first)
            # Before the other records, which are in the order of their batches: END is the last one.
            records.insert(0, (batch, Record.CLOCK.value, "", pack([offset, error])))
        files.insert(records, transaction.batch)

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
