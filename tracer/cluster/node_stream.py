# SPDX-License-Identifier: Apache-2.0
"""The client's side of the stream of one agent: frames to results, and the frames that the client sends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracer import __version__
from tracer.cluster.node_clock import NodeClock
from tracer.cluster.recorded_clock import RecordedClock
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.loss import Loss
from tracer.model.summary import RunSummary
from tracer.model.timeline import Timeline
from tracer.protocol.frames import Frame, FrameReader, FrameWriter
from tracer.protocol.limits import CREDIT_FRAMES, VERSION
from tracer.protocol.malformed_frame import MalformedFrame
from tracer.protocol.messages import (
    NEEDS_CREDIT,
    BatchEnd,
    Begin,
    ClientHello,
    Credit,
    End,
    FrameKind,
    Hello,
    Note,
    PacketClock,
    Ping,
    Pong,
    Shed,
)
from tracer.protocol.templates import PacketDecoder
from tracer.protocol.tree_codec import decode, encode, from_bytes, to_bytes

_CLASSES: dict[int, type] = {
    FrameKind.HELLO: Hello, FrameKind.BEGIN: Begin, FrameKind.FINDING: Finding, FrameKind.VERDICT: HandshakeVerdict,
    FrameKind.TIMELINE: Timeline, FrameKind.CONNECTION: Timeline, FrameKind.LOSS: Loss, FrameKind.SHED: Shed,
    FrameKind.NOTE: Note, FrameKind.PONG: Pong, FrameKind.BATCH: BatchEnd, FrameKind.CLOCK: PacketClock,
    FrameKind.SUMMARY: RunSummary, FrameKind.END: End,
}  # fmt: skip
"""The class of the object in a frame, by the frame's kind."""


@dataclass(frozen=True)
class Result:
    """One frame of an agent: its kind, and the object in it."""

    kind: FrameKind
    content: object


class NodeStream:
    """Reads one agent's frames, and makes the frames for it.

    Args:
        clock: The clock of the packets; None = it is compared with this machine's by pings.

    Attributes:
        hello: What the agent said first; None = nothing yet.
        clock: The node's clock.
        end: The agent's last frame; None = the stream goes on, or was cut off.
        wire_bytes: Bytes that came.
    """

    def __init__(self, clock: RecordedClock | None = None) -> None:
        self._reader, self._writer = FrameReader(is_compressed=True), FrameWriter(compresses=False)
        self._packets = PacketDecoder()
        self._used = self._pings = 0
        self.clock: NodeClock | RecordedClock = clock or NodeClock()
        self.hello: Hello | None = None
        self.end: End | None = None

    @property
    def wire_bytes(self) -> int:
        return self._reader.wire_bytes

    def hello_frame(self) -> bytes:
        """The first frame of the client, which gives no credit."""
        return self._frame(FrameKind.CLIENT_HELLO, ClientHello(program=__version__))

    def greeting(self) -> bytes:
        """The first frames of the client."""
        return self.hello_frame() + self._frame(FrameKind.CREDIT, Credit(CREDIT_FRAMES))

    def credit(self) -> bytes:
        """New credit for what was taken; empty while that is little."""
        if self._used < CREDIT_FRAMES // 4:
            return b""
        used, self._used = self._used, 0
        return self._frame(FrameKind.CREDIT, Credit(used))

    def ping(self, now: int) -> bytes:
        """The next ping. now: the client's clock, ns."""
        self._pings += 1
        self.clock.ask(self._pings, now)
        return self._frame(FrameKind.PING, Ping(self._pings))

    def stop(self) -> bytes:
        """The request to end the run."""
        return self._writer.frame(FrameKind.STOP, b"null")

    def _frame(self, kind: FrameKind, content: object) -> bytes:
        return self._writer.frame(kind, to_bytes(encode(content)))

    def feed(self, data: bytes, now: int) -> Iterator[Result]:
        """Yields the results that are complete with these bytes. Frames of an unknown kind are left out.

        Args:
            data: Bytes of the stream.
            now: The client's clock when they came, ns.

        Raises:
            MalformedFrame: The stream does not follow the protocol.
        """
        for frame in self._reader.feed(data):
            if frame.kind in NEEDS_CREDIT:
                self._used += 1
            result = self._result(frame, now)
            if result:
                yield result

    def _result(self, frame: Frame, now: int) -> Result | None:
        if self.hello is None and frame.kind != FrameKind.HELLO:
            raise MalformedFrame("its first frame is no hello")
        if frame.kind == FrameKind.TEMPLATE:
            self._packets.template(frame.body)
            return None
        if frame.kind == FrameKind.PACKET:
            return Result(FrameKind.PACKET, self._packets.packet(frame.body))
        if frame.kind == FrameKind.CAPTURE:
            return Result(FrameKind.CAPTURE, frame.body)
        cls = _CLASSES.get(frame.kind)
        if cls is None:
            return None
        content = decode(from_bytes(frame.body), cls)
        match content:
            case Hello():
                if content.protocol > VERSION:
                    raise MalformedFrame(
                        f"it speaks version {content.protocol} of the protocol, and this program version {VERSION}: use the"
                        " program of the nodes' image"
                    )
                self.hello = content
            case PacketClock():
                self.clock.set_packets(content.offset, bool(self.hello and self.hello.is_replay))
            case Pong():
                self.clock.answer(content.number, content.received, content.sent, now)
            case End():
                self.end = content
        return Result(FrameKind(frame.kind), content)
