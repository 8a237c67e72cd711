# SPDX-License-Identifier: Apache-2.0
"""Streams of agents for tests: frames of packets and results, without an agent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tracer.model.packet import Packet
from tracer.protocol.frames import FrameWriter
from tracer.protocol.limits import PREAMBLE
from tracer.protocol.messages import End, FrameKind, Hello
from tracer.protocol.templates import PacketEncoder
from tracer.protocol.tree_codec import encode, to_bytes


class AgentBytes:
    """Writes the stream of an agent."""

    def __init__(self) -> None:
        self._writer, self._encoder, self._is_begun = FrameWriter(compresses=True), PacketEncoder(), False

    def of(self, kind: int, content: object) -> bytes:
        """The bytes of one frame with an object."""
        return self.raw(kind, to_bytes(encode(content)))

    def raw(self, kind: int, body: bytes) -> bytes:
        """The bytes of one frame with this body."""
        begin, self._is_begun = b"" if self._is_begun else PREAMBLE, True
        return begin + self._writer.frame(kind, body) + self._writer.flush()

    def packet(self, packet: Packet) -> bytes:
        """The bytes of the frames of a packet."""
        return b"".join(self.raw(*frame) for frame in self._encoder.frames(packet))


def stream_of(packets: Iterable[Packet], hello: Hello | None = None) -> bytes:
    """A whole stream with these packets."""
    return b"".join(_stream_of(packets, hello or Hello(node="node-a", kernel="6.12.0")))


def _stream_of(packets: Iterable[Packet], hello: Hello) -> Iterator[bytes]:
    agent = AgentBytes()
    yield agent.of(FrameKind.HELLO, hello)
    for packet in packets:
        yield agent.packet(packet)
    yield agent.of(FrameKind.END, End())
