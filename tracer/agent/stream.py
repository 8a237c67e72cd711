# SPDX-License-Identifier: Apache-2.0
"""The two directions of an agent's stream, each in its own thread, and the lease that ends the run without a client."""

from __future__ import annotations

import logging
import os
import select
import threading
import time

from tracer.agent.frame_queue import MOST_FRAMES, FrameQueue
from tracer.model.packet import Packet
from tracer.pipeline.shutdown import StopRequest
from tracer.protocol.frames import Frame, FrameReader, FrameWriter
from tracer.protocol.limits import LEASE_SECONDS, PREAMBLE, VERSION
from tracer.protocol.malformed_frame import MalformedFrame
from tracer.protocol.messages import NEEDS_CREDIT, ClientHello, Credit, End, FrameKind, Hello, Ping, Pong
from tracer.protocol.templates import PacketEncoder
from tracer.protocol.tree_codec import decode, encode, from_bytes, to_bytes
from tracer.util.worker import Worker

READ_BYTES = 1 << 16
WAIT_SECONDS = 0.25
"""Longest wait of both threads before they look at the clock, s."""
ALIVE_SECONDS = 5.0
"""Time without a frame after which an agent says that it is alive, s."""
BATCH_ENTRIES = 512
"""Largest number of results in one write."""
DRAIN_SECONDS = 5.0
"""Longest time without progress that the end of a run waits for the client, s."""
MOST_PINGS = 16
"""Largest number of pings that wait for an answer; older ones get none."""
MOST_CREDIT = 1 << 20
"""Largest credit of one frame."""
NEWER_VERSIONS = 0
"""Versions of the protocol above its own that an agent understands."""

_log = logging.getLogger(__name__)


class AgentStream:
    """Writes frames to a descriptor, and reads those of the client from another one.

    Args:
        queue: The waiting results.
        hello: The first frame.
        source: Descriptor to read from.
        target: Descriptor to write to; may block.
        lease_seconds: Time without a frame of the client after which the run ends, s.

    Attributes:
        has_lost_client: The run ended because the client was silent or gone.
        problem: A clause about the client's stream if it was not readable; "" = none.
    """

    def __init__(self, queue: FrameQueue, hello: Hello, source: int, target: int, lease_seconds: float = LEASE_SECONDS) -> None:
        self._queue, self._source, self._target, self._lease_seconds = queue, source, target, lease_seconds
        self._writer, self._encoder = FrameWriter(compresses=True), PacketEncoder()
        self._reader = FrameReader(is_compressed=False)
        self._stop: StopRequest | None = None
        self._is_stopping = False
        self._last_word = self._last_sent = time.monotonic()
        self._pings: list[tuple[Ping, int]] = []
        self._is_greeted = self._is_begun = False
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self.has_lost_client = False
        self.problem = ""
        self._hello = hello
        self._threads = [
            Worker("agent: frames to the client", self._write_next).start(),
            Worker("agent: frames of the client", self._read_next).start(),
        ]

    def attach(self, stop: StopRequest) -> None:
        """The run can be ended from now on."""
        self._stop = stop
        if self.has_lost_client:
            stop.end_now()
        elif self._is_stopping:
            stop.request()

    def close(self, status: int) -> None:
        """Sends what waits, and the status. What the client does not take in time is counted, and that is sent."""
        self._queue.put(FrameKind.END, to_bytes(encode(End(status))))
        if not self._drain():
            self._queue.shed_rest()
            self._drain()
        self._is_over.set()
        self._queue.end()

    def _drain(self) -> bool:
        """Waits until everything is sent, or the client is gone; returns False when it takes nothing."""
        left, since = len(self._queue), time.monotonic()
        while not self._is_over.wait(0.02):
            if len(self._queue) != left:
                left, since = len(self._queue), time.monotonic()
            if time.monotonic() - since > DRAIN_SECONDS:
                return False
        return True

    # ---- to the client ----

    def _write_next(self) -> bool:
        """Sends what can be sent. Returns False at the end of the stream."""
        entries, shed = self._queue.read(BATCH_ENTRIES, WAIT_SECONDS)
        if self.has_lost_client:
            return False
        with self._lock:
            pings, self._pings = self._pings, []
        pieces: list[bytes] = []
        if not self._is_greeted:
            self._is_greeted = True
            pieces.append(self._frame(FrameKind.HELLO, self._hello))
        if shed:
            pieces.append(self._frame(FrameKind.SHED, shed))
        spare, is_last = 0, False
        for kind, content in entries:
            frames = self._packet(content) if isinstance(content, Packet) else [self._writer.frame(kind, content)]
            pieces += frames
            spare += MOST_FRAMES - len(frames) if kind in NEEDS_CREDIT else 0
            is_last = kind is FrameKind.END
        if spare:
            self._queue.add_credit(spare)
        pieces += [self._frame(FrameKind.PONG, Pong(p.number, received, time.monotonic_ns())) for p, received in pings]
        if not pieces and time.monotonic() - self._last_sent >= ALIVE_SECONDS:
            pieces.append(self._writer.frame(FrameKind.ALIVE, b"null"))
        if pieces and not self._send(b"".join([*pieces, self._writer.flush()])):
            return False
        if is_last:
            self._is_over.set()
        return not is_last

    def _packet(self, packet: Packet) -> list[bytes]:
        try:
            return [self._writer.frame(*frame) for frame in self._encoder.frames(packet)]
        except ValueError as e:
            _log.debug("a packet is too large", exc_info=e)
            self._queue.shed(FrameKind.PACKET)
            return []

    def _frame(self, kind: FrameKind, content: object) -> bytes:
        return self._writer.frame(kind, to_bytes(encode(content)))

    def _send(self, data: bytes) -> bool:
        """Writes to the client, however long it takes. Returns False when the client is gone."""
        if not self._is_begun:
            self._is_begun, data = True, PREAMBLE + data
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(self._target, left) :]
        except OSError as e:
            _log.debug("the client is gone", exc_info=e)
            self._lose_client()
            return False
        self._last_sent = time.monotonic()
        return True

    # ---- of the client ----

    def _read_next(self) -> bool:
        """Reads frames, and looks at the lease. Returns False at the end of the stream."""
        ready, _, _ = select.select([self._source], [], [], WAIT_SECONDS)
        if self._is_over.is_set():
            return False
        if ready:
            data = os.read(self._source, READ_BYTES)
            if not data:
                self._lose_client()
                return False
            try:
                for frame in self._reader.feed(data):
                    self._last_word = time.monotonic()
                    self._take(frame)
            except MalformedFrame as e:
                self.problem = f"the client's stream cannot be read: {e}"
                self._lose_client()
                return False
        elif time.monotonic() - self._last_word > self._lease_seconds:
            self.problem = f"no word from the client for {self._lease_seconds:.0f} s"
            self._lose_client()
            return False
        return True

    def _take(self, frame: Frame) -> None:
        tree = from_bytes(frame.body)
        match frame.kind:
            case FrameKind.CLIENT_HELLO:
                hello = decode(tree, ClientHello)
                assert isinstance(hello, ClientHello)
                if hello.protocol > VERSION + NEWER_VERSIONS:
                    raise MalformedFrame(f"version {hello.protocol} of the protocol")
            case FrameKind.CREDIT:
                credit = decode(tree, Credit)
                assert isinstance(credit, Credit)
                if not 0 <= credit.frames <= MOST_CREDIT:
                    raise MalformedFrame(f"a credit of {credit.frames} frames")
                self._queue.add_credit(credit.frames)
            case FrameKind.PING:
                ping, now = decode(tree, Ping), time.monotonic_ns()
                assert isinstance(ping, Ping)
                with self._lock:
                    self._pings = [*self._pings[-MOST_PINGS:], (ping, now)]
                self._queue.wake()
            case FrameKind.STOP:
                self._is_stopping = True
                if self._stop:
                    self._stop.request()

    def _lose_client(self) -> None:
        """Ends the run: nothing reads its results any more."""
        self.has_lost_client = True
        self._queue.end()
        self._is_over.set()
        if self._stop:
            self._stop.end_now()
