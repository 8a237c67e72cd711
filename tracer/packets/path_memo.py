# SPDX-License-Identifier: Apache-2.0
"""What is equal for all packets of a shared path, computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from tracer.model.packet import Packet
from tracer.packets.shared_packet import AnyPacket, SharedPacket, whole
from tracer.packets.shared_path import PathHops

T = TypeVar("T")
_MISSING = object()


class PathMemo(Generic[T]):
    """Keeps what is equal for all packets of a shared path; computes it for each other packet.

    Args:
        compute: Computes it from a packet, without any of its times, ports, lengths, sequence numbers.
    """

    def __init__(self, compute: Callable[[Packet], T]) -> None:
        self._compute = compute

    def of(self, packet: AnyPacket) -> T:
        """What was computed for the packet's path, or is computed for the packet."""
        if isinstance(packet, SharedPacket):
            path = packet.way.path
        elif isinstance(packet.hops, PathHops):
            path = packet.hops.path
        else:
            return self._compute(packet)
        found = path.kept.get(self, _MISSING)
        if found is _MISSING:
            found = path.kept[self] = self._compute(whole(packet))
        return found  # type: ignore[return-value] # what this memo keeps
