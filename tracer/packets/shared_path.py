# SPDX-License-Identifier: Apache-2.0
"""The hops of a packet that takes the path of an earlier one: made when they are looked at, with the packet's own values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

from tracer.model.endpoints import Endpoints
from tracer.model.hop import DecisionDetail, DetailHop, Hop, HopBase, Nat, RewriteHop, SharedHops, Socket, SocketHop
from tracer.model.packet import Packet
from tracer.util.frozen import evolve

Ports = tuple[int, int]
"""The ports that a connection chose: its source port, and the port that its answers go to."""


class EndpointsPattern(NamedTuple):
    """A pair of endpoints, and which of its ports are chosen ones.

    Attributes:
        ends: The endpoints in the packet that was explained.
        source: Place of the source port among the chosen ports, -1 = not chosen.
        destination: Place of the destination port among the chosen ports, -1 = not chosen.
    """

    ends: Endpoints
    source: int
    destination: int

    @classmethod
    def of(cls, ends: Endpoints, ports: Ports) -> EndpointsPattern:
        """The pattern of endpoints of a packet with these chosen ports."""
        return cls(ends, place_of(ends.sport, ports), place_of(ends.dport, ports))

    def fill(self, ports: Ports) -> Endpoints:
        """The endpoints in a packet with these chosen ports."""
        ends = self.ends
        if self.source < 0 and self.destination < 0:
            return ends
        sport = ends.sport if self.source < 0 else ports[self.source]
        return Endpoints(ends.src, sport, ends.dst, ends.dport if self.destination < 0 else ports[self.destination])


class HopPattern(NamedTuple):
    """A hop, and where its values come from.

    Attributes:
        hop: The hop in the packet that was explained.
        time: Place of its time among the times of the packet's rows.
        before: Place of the endpoints before its rewrite in SharedPath.ends, -1 = the rewrite has no chosen port.
        after: Place of the endpoints after its rewrite.
        socket: Of a socket: its place among the sockets of the path.
        detail: Of a decision detail: its place among those of the packet.
    """

    hop: Hop
    time: int
    before: int
    after: int
    socket: int
    detail: int


class SharedPath:
    """A path that several packets take.

    Args:
        hops: Its hops.
        ends: Patterns of the endpoints in it.

    Attributes:
        hops: Its hops.
        ends: Patterns of the endpoints in it.
        alike: The hops of the packet that was explained.
        places: Places of its hops by their class.
        kept: What stages and outputs keep for packets of this path, by stage or output. It is dropped together with the path.
    """

    __slots__ = ("alike", "ends", "hops", "kept", "places")

    def __init__(self, hops: tuple[HopPattern, ...], ends: tuple[EndpointsPattern, ...]) -> None:
        self.hops, self.ends = hops, ends
        self.alike = tuple(pattern.hop for pattern in hops)
        self.places: dict[type[HopBase], tuple[int, ...]] = {}
        self.kept: dict[object, object] = {}

    def with_hops(self, hops: Sequence[Hop]) -> SharedPath:
        """The same path with other statements about its hops, as their owners; values and rewrites are the same."""
        return SharedPath(tuple(p._replace(hop=hop) for p, hop in zip(self.hops, hops, strict=True)), self.ends)


class PathHops(SharedHops, Sequence[Hop]):
    """The hops of one packet on a shared path.

    Args:
        path: The path.
        times: Times of the packet's rows, ns, CLOCK_MONOTONIC.
        ports: The ports that its connection chose.
        sockets: For each hop with a socket, in order, the socket's inode.
        details: Its decision details, in order.

    Attributes:
        path: The path.
        times: Times of the packet's rows, ns, CLOCK_MONOTONIC.
        ports: The ports that its connection chose.
        sockets: Inodes of its sockets.
        details: Its decision details.
    """

    __slots__ = ("_hops", "_single", "details", "path", "ports", "sockets", "times")

    def __init__(
        self,
        path: SharedPath,
        times: list[int],
        ports: Ports,
        sockets: tuple[int, ...],
        details: tuple[DecisionDetail, ...],
    ) -> None:
        self.path, self.times, self.ports, self.sockets, self.details = path, times, ports, sockets, details
        self._hops: tuple[Hop, ...] | None = None
        self._single: dict[int, Hop] = {}

    def on(self, path: SharedPath) -> PathHops:
        """The hops of the same packet on the path with other statements."""
        return PathHops(path, self.times, self.ports, self.sockets, self.details)

    @property
    def alike(self) -> tuple[Hop, ...]:
        return self.path.alike

    def places(self, kind: type[HopBase]) -> tuple[int, ...]:
        found = self.path.places.get(kind)
        if found is None:
            found = tuple(at for at, hop in enumerate(self.path.alike) if isinstance(hop, kind))
            self.path.places[kind] = found
        return found

    def time(self, at: int) -> int:
        """Time of the hop at a place, ns, CLOCK_MONOTONIC; no hop is made."""
        return self.times[self.path.hops[at].time]

    def __len__(self) -> int:
        return len(self.path.hops)

    @overload
    def __getitem__(self, at: int) -> Hop: ...
    @overload
    def __getitem__(self, at: slice[int | None, int | None, int | None]) -> tuple[Hop, ...]: ...
    def __getitem__(self, at: int | slice[int | None, int | None, int | None]) -> Hop | tuple[Hop, ...]:
        if self._hops is None and isinstance(at, int):
            found = self._single.get(at)
            if found is None:
                found = self._single[at] = self._hop(self.path.hops[at])
            return found
        return self._made()[at]

    def __iter__(self) -> Iterator[Hop]:
        return iter(self._made())

    def __reversed__(self) -> Iterator[Hop]:
        return reversed(self._made())

    def __eq__(self, other: object) -> bool:
        return self._made() == (other._made() if isinstance(other, PathHops) else other)

    def __hash__(self) -> int:
        return hash(self._made())

    def __repr__(self) -> str:
        return repr(self._made())

    def _made(self) -> tuple[Hop, ...]:
        if self._hops is None:
            self._hops = tuple(map(self._hop, self.path.hops))
        return self._hops

    def _hop(self, pattern: HopPattern) -> Hop:
        hop, time = pattern.hop, self.times[pattern.time]
        match hop:
            case RewriteHop() if pattern.before >= 0:
                before, after = (self.path.ends[at].fill(self.ports) for at in (pattern.before, pattern.after))
                return evolve(hop, time=time, nat=Nat(hop.nat.kind, before, after))
            case SocketHop(socket=socket):
                own = Socket(self.sockets[pattern.socket], socket.state, socket.pid, socket.command)
                return evolve(hop, time=time, socket=own)
            case DetailHop():
                return evolve(hop, time=time, detail=self.details[pattern.detail])
            case _:
                return evolve(hop, time=time)


def shared_hops(packet: Packet) -> PathHops | None:
    """The packet's hops if it takes a shared path; None = it was explained on its own."""
    return packet.hops if isinstance(packet.hops, PathHops) else None


def place_of(port: int, ports: Ports) -> int:
    """The place of a port among the chosen ports, -1 = not chosen."""
    return ports.index(port) if port and port in ports else -1
