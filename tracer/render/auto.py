# SPDX-License-Identifier: Apache-2.0
"""The output format that chooses between `text` and `oneline`: blocks at first, and one line a packet when packets are many.

It changes once, and never back. The rate is that of the packets' own times, so a replay changes at the same packet as any other
run with the same packets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TextIO

from tracer.model.check import CheckResult
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.joined_packet import JoinedPacket
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.model.time_form import TimeForm
from tracer.packets.joined_views import first_time
from tracer.packets.shared_packet import SharedPacket
from tracer.render.oneline import FIELDS, OneLineOutput
from tracer.render.text import TextOutput

READABLE_PER_SECOND = 20
"""Largest rate of packets at which blocks are written, packets/s. One page of a terminal has about ten short blocks."""
WINDOW_SECONDS = 5
"""Time that the rate is measured over, s: a single request of 20 packets changes nothing."""
WINDOW_PACKETS = READABLE_PER_SECOND * WINDOW_SECONDS
CHANGE = (
    f"More than {READABLE_PER_SECOND} packets a second: from here on one packet a line (-o text keeps blocks)."
    f" Fields, separated by two blanks: {FIELDS}."
)


class AutoOutput(OneLineOutput):
    """Writes blocks until WINDOW_PACKETS packets come within WINDOW_SECONDS, then lines."""

    def __init__(
        self,
        out: TextIO | None = None,
        err: TextIO | None = None,
        verbose: bool = False,
        times: TimeForm = TimeForm.LOCAL,
    ) -> None:
        super().__init__(out, err, verbose, times)
        self._times: deque[int] = deque(maxlen=WINDOW_PACKETS)
        self._is_oneline = False

    def begin(self, results: Sequence[CheckResult], options_text: str, release: str = "") -> None:
        TextOutput.begin(self, results, options_text, release)

    def packet(self, packet: Packet) -> None:
        self._choose(packet.time)
        (OneLineOutput if self._is_oneline else TextOutput).packet(self, packet)

    def repeat(self, packet: SharedPacket) -> None:
        self._choose(packet.time)
        (OneLineOutput if self._is_oneline else TextOutput).repeat(self, packet)

    def joined(self, joined: JoinedPacket) -> None:
        self._choose(first_time(joined))
        (OneLineOutput if self._is_oneline else TextOutput).joined(self, joined)

    def _choose(self, time: int) -> None:
        """Changes to lines when packets come too fast. time: of the newest packet, ns since the epoch."""
        if not self._is_oneline and self._is_too_fast(time):
            self._is_oneline = True
            self.release()
            self.note(CHANGE)

    def _is_too_fast(self, time: int) -> bool:
        """Whether as many packets as the window holds came within its time. time: of the newest packet, ns since the epoch."""
        oldest = self._times[0] if len(self._times) == WINDOW_PACKETS else None
        self._times.append(time)
        return oldest is not None and time - oldest < WINDOW_SECONDS * 1_000_000_000

    def finding(self, finding: Finding) -> None:
        (OneLineOutput if self._is_oneline else TextOutput).finding(self, finding)

    def syn(self, verdict: HandshakeVerdict) -> None:
        (OneLineOutput if self._is_oneline else TextOutput).syn(self, verdict)

    def summary(self, summary: RunSummary) -> None:
        (OneLineOutput if self._is_oneline else TextOutput).summary(self, summary)


FORMAT = AutoOutput
