# SPDX-License-Identifier: Apache-2.0
"""Packets that a run has seen but not explained, because it was stopped. A replay explains them afterwards, with a mark.

The run did not ask the machine the questions that explaining such a packet needs. So no finding and no SYN verdict is made from
it, and the run does not count it among its packets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tracer.model.evidence import Evidence
from tracer.model.packet import Packet
from tracer.packets.shared_packet import AnyPacket, whole
from tracer.pipeline.assembly import Assembler
from tracer.util.frozen import evolve


@dataclass
class Backlog:
    """The backlog of one run.

    Attributes:
        evidence: how the end of explaining is known; None while packets are still explained.
        open: number of packets in the backlog, including those that are still open.
    """

    evidence: Evidence | None = None
    open: int = 0
    _first_packets: list[AnyPacket] = field(default_factory=list)
    _closed: int = 0

    def begin(self, evidence: Evidence, first_packets: Sequence[AnyPacket] = (), closed: int = 0) -> None:
        """Marks the point from which no packet is explained.

        Args:
            evidence: how this point is known.
            first_packets: packets after this point that are already assembled.
            closed: number of packet identities in `first_packets`.
        """
        self.evidence, self._first_packets, self._closed = evidence, list(first_packets), closed

    def count(self, assembler: Assembler) -> int:
        """Number of packets in the backlog, including those that are still open."""
        self.open = assembler.open + self._closed if self.evidence else 0
        return self.open

    def packets(self, assembler: Assembler) -> Iterator[Packet]:
        """Yields all packets of the backlog, each marked as unexplained."""
        if not self.evidence:
            return
        for chunk in (self._first_packets, *([] if self.open == self._closed else assembler.chunks())):
            for packet in chunk:
                yield evolve(whole(packet), unexplained=self.evidence)
