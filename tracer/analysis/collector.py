# SPDX-License-Identifier: Apache-2.0
"""An output that passes packets and verdicts on SYNs to functions, and prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.render.base import LostEvents, Output


class PacketCollector(Output):
    """Passes each packet, and each verdict on a SYN, to a function.

    Attributes:
        losses: Number of lost events by (probe, reason).
    """

    def __init__(
        self, take: Callable[[Packet], None], take_syn: Callable[[HandshakeVerdict], None] = lambda verdict: None
    ) -> None:
        super().__init__()
        self._take, self._take_syn = take, take_syn
        self.losses: dict[tuple[str, str], int] = {}

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None: ...

    def packet(self, packet: Packet) -> None:
        self._take(packet)

    def syn(self, verdict: HandshakeVerdict) -> None:
        self._take_syn(verdict)

    def lost(self, loss: LostEvents) -> None:
        key = loss.probe, loss.why
        self.losses[key] = self.losses.get(key, 0) + loss.count

    def finding(self, finding: Finding) -> None: ...

    def summary(self, summary: RunSummary) -> None: ...

    def doctor(self, results: Sequence[CheckResult], status: int) -> None: ...
