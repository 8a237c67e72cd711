# SPDX-License-Identifier: Apache-2.0
"""Frames in a stream of bytes: a header with length, number and kind, then the body.

The agent's frames are one zlib stream behind PREAMBLE; the client's few frames are not compressed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from tracer.protocol.limits import MOST_BODY_BYTES, MOST_CLIENT_BODY_BYTES, PREAMBLE
from tracer.protocol.malformed_frame import MalformedFrame

HEADER = struct.Struct(">IQB")
"""Length of the body in bytes, number of the frame from 1, kind."""
PIECE_BYTES = 1 << 18
"""Bytes that are decompressed at a time."""
LEVEL = 1
"""Level of compression: level 6 takes twice the time for a tenth less."""


class Frame(NamedTuple):
    """One frame: its number, its kind as a number, and its body."""

    number: int
    kind: int
    body: bytes


class FrameWriter:
    """Makes the bytes of frames. compresses: for the stream of an agent."""

    def __init__(self, compresses: bool) -> None:
        self._number = 0
        self._compressor = zlib.compressobj(LEVEL) if compresses else None
        self._most = MOST_BODY_BYTES if compresses else MOST_CLIENT_BODY_BYTES

    def frame(self, kind: int, body: bytes) -> bytes:
        """The bytes of one frame, which may wait in the compressor. Raises ValueError for a body that is too long."""
        if len(body) > self._most:
            raise ValueError(f"a frame of {len(body)} bytes")
        self._number += 1
        data = HEADER.pack(len(body), self._number, kind) + body
        return self._compressor.compress(data) if self._compressor else data

    def flush(self) -> bytes:
        """The bytes that the compressor holds: all frames so far can be read afterwards."""
        return self._compressor.flush(zlib.Z_SYNC_FLUSH) if self._compressor else b""


class FrameReader:
    """Reads frames from pieces of a stream.

    Args:
        is_compressed: The stream is that of an agent.

    Attributes:
        wire_bytes: Bytes that came over the wire.
        frames: Number of frames.
    """

    def __init__(self, is_compressed: bool) -> None:
        self._decompressor = zlib.decompressobj() if is_compressed else None
        self._most = MOST_BODY_BYTES if is_compressed else MOST_CLIENT_BODY_BYTES
        self._rest = bytearray()
        self._preamble = PREAMBLE if is_compressed else b""
        self.wire_bytes = self.frames = 0

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames that are complete with these bytes. Raises MalformedFrame."""
        self.wire_bytes += len(data)
        data = self._after_preamble(data)
        if not self._decompressor:
            self._rest += data
            yield from self._complete()
            return
        while data:
            try:
                self._rest += self._decompressor.decompress(data, PIECE_BYTES)
            except zlib.error as e:
                raise MalformedFrame("its compressed data is damaged") from e
            yield from self._complete()
            if self._decompressor.eof:
                raise MalformedFrame("its compressed stream ends")
            data = self._decompressor.unconsumed_tail

    @property
    def is_inside_frame(self) -> bool:
        """Whether the stream so far ends inside a frame."""
        return bool(self._rest) or bool(self._preamble)

    def _after_preamble(self, data: bytes) -> bytes:
        if self._preamble:
            begin, data = data[: len(self._preamble)], data[len(self._preamble) :]
            if not self._preamble.startswith(begin):
                raise MalformedFrame("it is not the stream of an agent")
            self._preamble = self._preamble[len(begin) :]
        return data

    def _complete(self) -> Iterator[Frame]:
        at, rest = 0, self._rest
        while len(rest) - at >= HEADER.size:
            length, number, kind = HEADER.unpack_from(rest, at)
            if length > self._most:
                raise MalformedFrame(f"a frame of {length} bytes")
            if number != self.frames + 1:
                raise MalformedFrame(f"frame {number} follows frame {self.frames}")
            if len(rest) - at - HEADER.size < length:
                break
            begin = at + HEADER.size
            at = begin + length
            self.frames = number
            yield Frame(number, kind, bytes(rest[begin:at]))
        del rest[:at]
