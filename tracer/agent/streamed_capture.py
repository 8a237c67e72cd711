# SPDX-License-Identifier: Apache-2.0
"""A capture that goes to the client instead of a file: the recorder's transactions as frames.

The recorder's own thread waits here for room and credit; what it cannot send in time it counts as missing in the capture, as
with a slow disk. The tracing does not wait.
"""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

from tracer.agent.frame_queue import FrameQueue
from tracer.capture.record.capture_files import RotationLimits
from tracer.protocol.capture_pieces import CaptureTransaction, pieces
from tracer.protocol.messages import FrameKind

NAME = "the client's capture"


class StreamedCapture:
    """Takes the place of CaptureFiles.

    Attributes:
        names: What is written, for messages.
        limits: None: the client divides its files.
    """

    def __init__(self, queue: FrameQueue) -> None:
        self._queue = queue
        self._meta: dict[str, Any] | None = None
        self.names = [Path(NAME)]
        self.limits = RotationLimits()

    def describe(self, meta: dict[str, Any]) -> None:
        """Sets the values that do not change in the run."""
        self._meta = meta

    def insert(self, records: list[tuple[Any, ...]], batch: tuple[Any, ...] | None) -> None:
        """Sends one transaction. Raises OSError when the stream has ended."""
        self._send(CaptureTransaction(self._meta, [(r[0], str(r[1]), r[2], r[3]) for r in records], batch))
        self._meta = None

    def _send(self, transaction: CaptureTransaction) -> None:
        try:
            found = list(pieces(transaction))
        except ValueError as e:
            raise OSError(errno.EFBIG, str(e)) from e
        for piece in found:
            if not self._queue.put_waiting(FrameKind.CAPTURE, piece):
                raise OSError(errno.EPIPE, "the client has ended")

    def discard(self) -> None:
        """Nothing was recorded."""

    def close(self) -> None:
        """All transactions were sent."""
