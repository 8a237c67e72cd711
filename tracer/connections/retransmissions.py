# SPDX-License-Identifier: Apache-2.0
"""Retransmitted TCP segments: the number of transmissions, and the end of the first one."""

from __future__ import annotations

from tracer.model.packet import Packet

LARGE_BYTES = 1200
"""Length from which a segment may be too large for a tunnel on its path, bytes."""
MAX_SEGMENTS, MAX_SEGMENTS_IDLE = 48, 4
"""Segments kept of a connection, and of an idle connection."""


class Retransmissions:
    """Retransmissions of one connection: how often each segment was sent, and how its first transmission ended."""

    __slots__ = ("_last_evicted", "_sent")

    def __init__(self) -> None:
        self._last_evicted: dict[str, int] = {}
        self._sent: dict[tuple[str, int], tuple[int, str]] = {}

    def feed(self, packet: Packet, direction: str) -> str:
        """Takes a segment. Returns a remark if it was sent before, otherwise "", also if that is no longer known."""
        if packet.protocol != "TCP" or not occupies_sequence(packet):
            return ""
        if (direction, packet.seq) not in self._sent and self._is_before_kept(packet.seq, direction):
            return ""  # perhaps sent again, perhaps late: the number of the try would be a guess
        tries, first = self._sent.get((direction, packet.seq), (0, packet.verdict))
        self._sent[direction, packet.seq] = tries + 1, first
        self._limit(MAX_SEGMENTS)
        if not tries:
            return ""
        remark = f"sent again ({tries + 1}. try), the first ended: {first}"
        # Small segments arrived: without them there would be no data segments yet.
        is_black_hole = tries > 1 and packet.length > LARGE_BYTES
        if not is_black_hole:
            return remark
        return f"{remark}; perhaps an MTU black hole: {packet.length} B do not get through, smaller packets do"

    def update(self, packet: Packet, direction: str) -> None:
        """Takes a later part of a segment's path: its first transmission ended there."""
        tries, _ = self._sent.get((direction, packet.seq), (0, ""))
        if tries == 1:
            self._sent[direction, packet.seq] = tries, packet.verdict

    def shrink(self) -> None:
        """Keeps only the newest segments of an idle connection: those that may still be sent again."""
        self._limit(MAX_SEGMENTS_IDLE)

    def _limit(self, max_segments: int) -> None:
        while len(self._sent) > max_segments:
            direction, seq = next(iter(self._sent))
            del self._sent[direction, seq]
            if not self._is_before_kept(seq, direction):
                self._last_evicted[direction] = seq

    def _is_before_kept(self, seq: int, direction: str) -> bool:
        """Whether a segment is from before those that are kept in its direction."""
        last = self._last_evicted.get(direction)
        return last is not None and (last - seq) % (1 << 32) < 1 << 31


def occupies_sequence(packet: Packet) -> bool:
    """Whether a segment occupies sequence numbers. Only such a segment is sent again."""
    return "SYN" in packet.tcp_flags or "FIN" in packet.tcp_flags or "PSH" in packet.tcp_flags or packet.length > 120
