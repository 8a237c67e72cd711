# SPDX-License-Identifier: Apache-2.0
"""The output of a run that goes to a client as frames."""

from __future__ import annotations

from collections.abc import Sequence

from tracer.agent.frame_queue import FrameQueue
from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.loss import Loss
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.model.timeline import Timeline
from tracer.protocol.limits import MOST_BODY_BYTES
from tracer.protocol.messages import BatchEnd, Begin, FrameKind, Note, PacketClock
from tracer.protocol.tree_codec import encode, to_bytes
from tracer.render.base import LostEvents, Output

BATCH_NS = 500_000_000
"""Time after which the end of a batch without a result is sent, too, ns."""

NO_LIMIT = 1 << 62
"""The time up to which all packets were given, before anything is known about it, ns."""


class AgentOutput(Output):
    """Puts each result into a queue. Packets never change, and are encoded by the thread that sends them.

    Args:
        queue: The queue.
        shows_all_results: The client needs all results of `doctor`.
        verbose: Every hop is wanted.
    """

    def __init__(self, queue: FrameQueue, shows_all_results: bool, verbose: bool = False) -> None:
        super().__init__(verbose=verbose)
        self._queue, self._shows_all_results = queue, shows_all_results
        self._is_batch_empty = True
        self._batch_sent = 0
        self._settled = NO_LIMIT

    @property
    def shows_all_results(self) -> bool:
        return self._shows_all_results

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        self._put(FrameKind.BEGIN, Begin(tuple(results), options_text, release))

    def set_clock(self, offset: int) -> None:
        self._put(FrameKind.CLOCK, PacketClock(offset))

    def packet(self, packet: Packet) -> None:
        self._is_batch_empty = False
        self._queue.put(FrameKind.PACKET, packet)

    def lost(self, loss: LostEvents) -> None:
        super().lost(loss)
        self._put(FrameKind.LOSS, loss if isinstance(loss, Loss) else Loss(loss.probe, loss.cpu, loss.count, loss.why))

    def finding(self, finding: Finding) -> None:
        self._put(FrameKind.FINDING, finding)

    def syn(self, verdict: HandshakeVerdict) -> None:
        self._put(FrameKind.VERDICT, verdict)

    def timeline(self, timeline: Timeline) -> None:
        self._put(FrameKind.TIMELINE, timeline)

    def connection(self, timeline: Timeline) -> None:
        self._put(FrameKind.CONNECTION, timeline)

    def settled(self, until: int) -> None:
        self._settled = until

    def end_batch(self, now: int) -> None:
        """Batches without a result are sent from time to time: the client learns up to which time it has all packets."""
        if not self._is_batch_empty or now - self._batch_sent >= BATCH_NS:
            self._put(FrameKind.BATCH, BatchEnd(min(now, self._settled)))
            self._is_batch_empty, self._batch_sent = True, now

    def summary(self, summary: RunSummary) -> None:
        self._put(FrameKind.SUMMARY, summary)

    def doctor(self, results: Sequence[CheckResult], status: int) -> None:
        """An agent runs no `doctor`."""

    def note(self, text: str) -> None:
        self._put(FrameKind.NOTE, Note(text))

    def _put(self, kind: FrameKind, content: object) -> None:
        self._is_batch_empty = False
        try:
            body = to_bytes(encode(content))
        except ValueError:
            body = b""
        if not body or len(body) > MOST_BODY_BYTES:
            self._queue.shed(kind)
        else:
            self._queue.put(kind, body)
