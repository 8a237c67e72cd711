# SPDX-License-Identifier: Apache-2.0
"""A packet on the path of an earlier packet, before it is made: what it shares, and its own values.

Stages and outputs that know the path take it as it is (`repeat`). The others get the whole packet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tracer.model.hop import DecisionDetail
from tracer.model.packet import Packet
from tracer.packets.shared_path import PathHops, Ports, SharedPath
from tracer.util.frozen import evolve

if TYPE_CHECKING:
    from tracer.packets.path_signature import HeaderValues


class RowPlaces(NamedTuple):
    """Places among the rows of each packet on a path.

    Attributes:
        began: The first event.
        late: The rows that late events of the packet need.
    """

    began: int
    late: tuple[int, ...]


class ConnectionPath:
    """A path with the ports that one connection chose: what packets of the connection on this path have in common.

    Args:
        sample: A packet on it. Only its values are its own: number, times, lengths, sequence numbers.
        path: The path.
        ports: The chosen ports.
        rows: Places among the rows of each packet.

    Attributes:
        sample: A packet on it. Only its values are its own: number, times, lengths, sequence numbers.
        path: The path.
        ports: The chosen ports.
        rows: Places among the rows of each packet.
        kept: What stages keep for packets on it, by stage. It is dropped together with it.
    """

    __slots__ = ("kept", "path", "ports", "rows", "sample")

    def __init__(self, sample: Packet, path: SharedPath, ports: Ports, rows: RowPlaces) -> None:
        self.sample, self.path, self.ports, self.rows = sample, path, ports, rows
        self.kept: dict[object, object] = {}


class SharedPacket:
    """A packet on a shared path.

    Args:
        identity: Identity of the packet.
        way: What it shares with other packets of its connection.
        time: Time of its first event, ns since the epoch.
        times: Times of its rows, ns, CLOCK_MONOTONIC.
        sockets: Inodes of the sockets that received it, in order.
        details: Its decision details, in order.
        header: Values of its first event with a header.

    Attributes:
        identity: Identity of the packet.
        way: What it shares with other packets of its connection.
        time: Time of its first event, ns since the epoch.
        times: Times of its rows, ns, CLOCK_MONOTONIC.
        sockets: Inodes of the sockets that received it, in order.
        details: Its decision details, in order.
        number: Order in which packets ended; 0 = not known yet.
        length: Bytes from the IP header on.
        seq: TCP sequence number.
        ack: TCP acknowledgement number.
        ident: IPv4 identification.
    """

    __slots__ = (
        "_whole", "ack", "details", "ident", "identity", "length", "number", "seq", "sockets", "time", "times", "way",
    )  # fmt: skip

    def __init__(
        self,
        identity: int,
        way: ConnectionPath,
        time: int,
        times: list[int],
        sockets: tuple[int, ...],
        details: tuple[DecisionDetail, ...],
        header: HeaderValues,
    ) -> None:
        self.identity, self.way, self.time, self.times = identity, way, time, times
        self.sockets, self.details, self.number = sockets, details, 0
        self.length, self.seq, self.ack, self.ident = header
        self._whole: Packet | None = None

    def move(self, way: ConnectionPath) -> None:
        """From now on the packet has the statements of another one about its path, as owners."""
        self.way, self._whole = way, None

    def packet(self) -> Packet:
        """The whole packet, with the number that it has now."""
        if self._whole is None or self._whole.number != self.number:
            way = self.way
            self._whole = evolve(
                way.sample,
                identity=self.identity,
                time=self.time,
                length=self.length,
                seq=self.seq,
                ack=self.ack,
                ident=self.ident,
                hops=PathHops(way.path, self.times, way.ports, self.sockets, self.details),
                number=self.number,
            )
        return self._whole


AnyPacket: TypeAlias = Packet | SharedPacket


def whole(packet: AnyPacket) -> Packet:
    """The packet itself, or the one that is made of a packet on a shared path."""
    return packet.packet() if isinstance(packet, SharedPacket) else packet


def hop_time(packet: AnyPacket, at: int) -> int:
    """Time of the packet's hop at a place, ns, CLOCK_MONOTONIC; for a shared path no hop is made. Raises IndexError."""
    if isinstance(packet, SharedPacket):
        return packet.times[packet.way.path.hops[at].time]
    hops = packet.hops
    return hops.time(at) if isinstance(hops, PathHops) else hops[at].time
