# SPDX-License-Identifier: Apache-2.0
"""An output that passes what it gets to functions and prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.model.timeline import Timeline
from tracer.render.base import LostEvents, Output


class PacketCollector(Output):
    """Passes each packet to a function, and if requested SYN verdicts, connections and losses, too.

    Args:
        take: Takes packets.
        take_syn: Takes SYN verdicts.
        take_connection: Takes each connection when it is over.
        take_loss: Takes losses.

    Attributes:
        losses: Number of lost events by (probe, reason).
    """

    def __init__(
        self,
        take: Callable[[Packet], None],
        take_syn: Callable[[HandshakeVerdict], None] = lambda verdict: None,
        take_connection: Callable[[Timeline], None] = lambda timeline: None,
        take_loss: Callable[[LostEvents], None] = lambda loss: None,
    ) -> None:
        super().__init__()
        self._take, self._take_syn, self._take_connection, self._take_loss = take, take_syn, take_connection, take_loss
        self.losses: dict[tuple[str, str], int] = {}

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None: ...

    def packet(self, packet: Packet) -> None:
        self._take(packet)

    def lost(self, loss: LostEvents) -> None:
        key = loss.probe, loss.why
        self.losses[key] = self.losses.get(key, 0) + loss.count
        self._take_loss(loss)

    def syn(self, verdict: HandshakeVerdict) -> None:
        self._take_syn(verdict)

    def connection(self, timeline: Timeline) -> None:
        self._take_connection(timeline)

    def finding(self, finding: Finding) -> None: ...

    def summary(self, summary: RunSummary) -> None: ...

    def doctor(self, results: Sequence[CheckResult], status: int) -> None: ...
