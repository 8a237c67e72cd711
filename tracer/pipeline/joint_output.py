# SPDX-License-Identifier: Apache-2.0
"""Several outputs of one run that write no stream of results, as metrics and a store: each one gets everything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.model.timeline import Timeline
from tracer.packets.shared_packet import SharedPacket
from tracer.render.base import LostEvents, Output


class JointOutput(Output):
    """Passes each call to all outputs. Notes go to the first one. They must raise no errors of their own."""

    def __init__(self, outputs: Sequence[Output]) -> None:
        super().__init__(err=outputs[0].err)
        self._outputs = tuple(outputs)

    def outputs(self) -> Iterator[Output]:
        return iter(self._outputs)

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        for each in self._outputs:
            each.begin(results, options_text, release)

    def set_clock(self, offset: int) -> None:
        for each in self._outputs:
            each.set_clock(offset)

    def set_node_clock(self, offset: int) -> None:
        for each in self._outputs:
            each.set_node_clock(offset)

    def packet(self, packet: Packet) -> None:
        for each in self._outputs:
            each.packet(packet)

    def repeat(self, packet: SharedPacket) -> None:
        for each in self._outputs:
            each.repeat(packet)

    def lost(self, loss: LostEvents) -> None:
        for each in self._outputs:
            each.lost(loss)

    def not_sent(self, frames: Mapping[str, int]) -> None:
        for each in self._outputs:
            each.not_sent(frames)

    def finding(self, finding: Finding) -> None:
        for each in self._outputs:
            each.finding(finding)

    def finding_again(self, finding: Finding) -> None:
        for each in self._outputs:
            each.finding_again(finding)

    def syn(self, verdict: HandshakeVerdict) -> None:
        for each in self._outputs:
            each.syn(verdict)

    def timeline(self, timeline: Timeline) -> None:
        for each in self._outputs:
            each.timeline(timeline)

    def connection(self, timeline: Timeline) -> None:
        for each in self._outputs:
            each.connection(timeline)

    def begin_batch(self) -> None:
        for each in self._outputs:
            each.begin_batch()

    def settled(self, until: int) -> None:
        for each in self._outputs:
            each.settled(until)

    def end_batch(self, now: int) -> None:
        for each in self._outputs:
            each.end_batch(now)

    def summary(self, summary: RunSummary) -> None:
        for each in self._outputs:
            each.summary(summary)

    def doctor(self, results: Sequence[CheckResult], status: int) -> None:
        """A run with several such outputs runs no `doctor`."""

    def note(self, text: str) -> None:
        self._outputs[0].note(text)
