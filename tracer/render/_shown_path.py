# SPDX-License-Identifier: Apache-2.0
"""What the text format shows of a packet's path, to find packets of one connection that take the same path."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from tracer.model.connection import ConnectionKey
from tracer.model.endpoints import Endpoints
from tracer.model.hop import DetailHop, Hop, IpvsNatHop, IpvsRefusalHop, RuleHop, SocketHop, nat_of, verdict_of
from tracer.model.packet import Flow, Packet
from tracer.packets.flooded_copies import is_refused_copy
from tracer.packets.path_memo import PathMemo
from tracer.packets.shared_path import Ports, shared_hops
from tracer.render._packet import decisive


class ShownPaths:
    """Identifies paths. For packets on a shared path, what the ports of their connection do not change is computed once."""

    def __init__(self) -> None:
        self._shapes = PathMemo(_shape)

    def identity(self, packet: Packet, flow: Flow) -> Hashable:
        """Equal for packets of one connection and direction of which text shows the same hops and the same verdict.

        Args:
            packet: The packet.
            flow: Its connection.
        """
        hops, ports = shared_hops(packet), _ports(flow)
        if hops and hops.ports == (ports[0], 0 if ports[0] == ports[1] else ports[1]):
            shape = self._shapes.of(packet)
            if not shape.constants.isdisjoint(ports):
                shape = _shape(packet)
        else:
            shape = _shape(packet)
        return ConnectionKey.of(packet), flow.is_reply, packet.verdict, ports[1], shape.states


class _States:
    """The shown hops. Its hash is computed once, because it is long."""

    __slots__ = ("_hash", "states")

    def __init__(self, states: tuple[Hashable, ...]) -> None:
        self.states, self._hash = states, hash(states)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _States) and self._hash == other._hash and self.states == other.states)


class _Shape(NamedTuple):
    """The shown hops of a path.

    Attributes:
        states: What is shown of each; a port that the connection chose is the negative number of its place.
        constants: The other ports in them.
    """

    states: _States
    constants: frozenset[int]


def _ports(flow: Flow) -> Ports:
    """The ports that the connection chose."""
    return flow.orig.sport, flow.reply.dport


def _shape(packet: Packet) -> _Shape:
    assert packet.flow
    ports, constants = _ports(packet.flow), set[int]()
    hops = [hop for hop in decisive(packet.hops) if not is_refused_copy(hop)]
    return _Shape(_States(tuple([_state(hop, ports, constants) for hop in hops])), frozenset(constants))


def _state(hop: Hop, ports: Ports, constants: set[int]) -> Hashable:
    """What must be equal in two hops so that one line of text can stand for both."""
    place = (hop.table, hop.base_chain) if isinstance(hop, RuleHop) else ()
    of_ipvs = hop.decision if isinstance(hop, (IpvsNatHop, IpvsRefusalHop)) else None
    detail = (hop.detail.what, *hop.detail.facts.items()) if isinstance(hop, DetailHop) else ()
    pid = hop.socket.pid if isinstance(hop, SocketHop) else 0
    nat = nat_of(hop)
    rewrite = nat and (nat.kind, *(_ends(each, ports, constants) for each in (nat.before, nat.after)))
    return hop.kind, hop.netns, hop.hook, place, verdict_of(hop), rewrite, of_ipvs, detail, pid


def _ends(ends: Endpoints, ports: Ports, constants: set[int]) -> Hashable:
    constants.update(port for port in (ends.sport, ends.dport) if port not in ports)
    return ends.src, _place(ends.sport, ports), ends.dst, _place(ends.dport, ports)


def _place(port: int, ports: Ports) -> int:
    return -1 - ports.index(port) if port in ports else port
