# SPDX-License-Identifier: Apache-2.0
"""The frames between the host and a guest that runs commands for it, over one byte stream. Both sides import this file.

A frame is a head (number of the command, kind, length of the body) and a body. Each command has a window in each direction: a
command with output that nothing reads waits, and the others go on.
"""

from __future__ import annotations

import struct
import threading
from enum import IntEnum

HEAD = struct.Struct(">IBI")
WINDOW_FRAME = struct.Struct(">I")
STATUS_FRAME = struct.Struct(">i")
WINDOW_BYTES = 256 * 1024
"""Bytes of one command that may be on their way in one direction."""
PIECE_BYTES = 16 * 1024
"""Largest body of a frame with a command's input or output, bytes."""
NO_PROGRAM = 127
"""Exit status of a command with a program that cannot be started."""


class Kind(IntEnum):
    """The kinds of frames."""

    START = 1
    """To the guest: JSON with `argv`, `env` (added to the guest's), `cwd`."""
    INPUT = 2
    INPUT_END = 3
    KILL = 4
    """To the guest: the command's processes are killed."""
    WINDOW = 5
    """Both ways: so many bytes were taken."""
    OUTPUT = 6
    ERROR = 7
    """To the host: standard error."""
    EXIT = 8
    """To the host: the exit status; negative: the number of a signal."""


class Window:
    """Bytes that may still be sent."""

    def __init__(self) -> None:
        self._left = WINDOW_BYTES
        self._changed = threading.Condition()
        self._is_closed = False

    def take(self, most: int) -> int:
        """Waits for room, and takes at most this many bytes. 0: the stream has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._left or self._is_closed)
            taken = 0 if self._is_closed else min(most, self._left)
            self._left -= taken
            return taken

    def add(self, count: int) -> None:
        """The other side has taken so many bytes."""
        with self._changed:
            self._left += count
            self._changed.notify_all()

    def close(self) -> None:
        """Ends every wait."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


def frame(number: int, kind: Kind, body: bytes = b"") -> bytes:
    """The bytes of one frame."""
    return HEAD.pack(number, kind, len(body)) + body


class FrameBuffer:
    """Divides a byte stream into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, Kind, bytes]]:
        """The frames that are complete with these bytes: number, kind, body."""
        self._data += data
        found = []
        while len(self._data) >= HEAD.size:
            number, kind, length = HEAD.unpack_from(self._data)
            if len(self._data) < HEAD.size + length:
                break
            found.append((number, Kind(kind), bytes(self._data[HEAD.size : HEAD.size + length])))
            del self._data[: HEAD.size + length]
        return found
