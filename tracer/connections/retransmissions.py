# SPDX-License-Identifier: Apache-2.0
"""Segments that are sent again: which try it is, and where the first one ended."""

from __future__ import annotations

from tracer.model.packet import Packet

LARGE = 1200
"""Bytes: a segment that may be too large for a tunnel on its way."""
MOST, MOST_QUIET = 48, 4
"""So many segments are remembered, and so many of a connection that has nothing to say."""


class Retransmissions:
    """Those of one connection: how often each segment was sent, and how its first try ended."""

    __slots__ = ("_sent",)

    def __init__(self) -> None:
        self._sent: dict[tuple[str, int], tuple[int, str]] = {}

    def again(self, packet: Packet, way: str) -> str:
        """Takes a segment; the remark of one that was sent before."""
        if packet.protocol != "TCP" or not occupies(packet):
            return ""
        tries, first = self._sent.get((way, packet.seq), (0, packet.verdict))
        self._sent[way, packet.seq] = tries + 1, first
        self._keep(MOST)
        if not tries:
            return ""
        remark = f"sent again ({tries + 1}. try), the first ended: {first}"
        # Small segments came through, or there would be no data yet.
        lost = tries > 1 and packet.length > LARGE
        return f"{remark}; perhaps an MTU black hole: {packet.length} B do not get through, less does" if lost else remark

    def went_on(self, packet: Packet, way: str) -> None:
        """A part of a segment's way that came later: its first try ended there."""
        tries, _ = self._sent.get((way, packet.seq), (0, ""))
        if tries == 1:
            self._sent[way, packet.seq] = tries, packet.verdict

    def flush(self) -> None:
        """The connection is quiet: only what may yet be sent again."""
        self._keep(MOST_QUIET)

    def _keep(self, most: int) -> None:
        while len(self._sent) > most:
            del self._sent[next(iter(self._sent))]


def occupies(packet: Packet) -> bool:
    """Whether a segment takes up sequence numbers: only such a one is sent again."""
    return "SYN" in packet.tcp_flags or "FIN" in packet.tcp_flags or "PSH" in packet.tcp_flags or packet.length > 120
