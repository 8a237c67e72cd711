# SPDX-License-Identifier: Apache-2.0
"""Packets that a run has seen and does not come to explain, for it is made to end. A replay explains them afterwards, marked.

What such a packet would have asked of the machine was not asked. So no finding and no verdict of a SYN is made of it, and it is
not among the packets that the run counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tracer.model.evidence import Evidence
from tracer.model.packet import Packet
from tracer.packets.assembler import PacketAssembler


@dataclass
class Backlog:
    """That of one run. evidence: how it is known that explaining has ended, None while it goes on. open: packets in it."""

    evidence: Evidence | None = None
    open: int = 0
    _made: list[Packet] = field(default_factory=list)
    _closed: int = 0

    def begin(self, evidence: Evidence, made: list[Packet] | None = None, closed: int = 0) -> None:
        """From here on nothing is explained. made: the first packets behind that, if they are already made; closed: how many
        identities they had."""
        self.evidence, self._made, self._closed = evidence, made or [], closed

    def count(self, assembler: PacketAssembler) -> int:
        """How many packets are in it, with those that are open."""
        self.open = assembler.open + self._closed if self.evidence else 0
        return self.open

    def packets(self, assembler: PacketAssembler) -> Iterator[Packet]:
        """All of them, each with its mark."""
        if not self.evidence:
            return
        for chunk in (self._made, *([] if self.open == self._closed else assembler.chunks())):
            for packet in chunk:
                packet.unexplained = self.evidence
                yield packet
