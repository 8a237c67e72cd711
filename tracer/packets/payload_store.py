# SPDX-License-Identifier: Apache-2.0
"""The payload bytes of packets that are open, until the packet is closed."""

from __future__ import annotations

from tracer.events.payload import Pieces
from tracer.util.lru_dict import LruDict

PACKETS_KEPT = 1 << 16
"""Most packets with payload bytes."""
BYTES_KEPT = 128 << 20
"""Most payload bytes of all packets, with PIECE_BYTES for each piece."""
PIECE_BYTES = 128
"""Memory of a piece beside its payload, bytes."""


class PayloadStore(LruDict[int, Pieces]):
    """Payload bytes by packet identity; the packet without a new piece for the longest time is evicted first.

    Attributes:
        octets: Memory in use, bytes.
    """

    def __init__(self) -> None:
        super().__init__(PACKETS_KEPT, "payloads of packets", lambda _, pieces: self._count(pieces, -1), is_exact=True)
        self.octets = 0

    def add(self, packet: int, first: int, piece: bytes) -> None:
        """Adds the bytes of a packet from offset `first` on."""
        pieces = self.setdefault(packet, {})
        if first in pieces:
            self._count({first: pieces[first]}, -1)
        pieces[first] = piece
        self._count({first: piece}, 1)
        while self.octets > BYTES_KEPT and len(self) > 1:
            self.evict()

    def _count(self, pieces: Pieces, sign: int) -> None:
        self.octets += sign * sum(len(piece) + PIECE_BYTES for piece in pieces.values())

    def __delitem__(self, packet: int) -> None:
        self._count(self[packet], -1)
        super().__delitem__(packet)
