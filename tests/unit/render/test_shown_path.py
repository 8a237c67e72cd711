# SPDX-License-Identifier: Apache-2.0
"""The identity of a shown path: the same for a packet on a shared path as for the same packet explained on its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import pytest

from tests.support import syns
from tests.support.builders import Trail
from tests.support.shared_paths import assembled, delivered, forwarded, rows_of
from tracer.model.packet import Packet
from tracer.packets.shared_path import SharedPath, shared_hops
from tracer.render._shown_path import ShownPaths
from tracer.util.frozen import evolve

POD_PORT = 8080


def packets_of(*trails: Trail) -> list[Packet]:
    found, assembler = assembled([rows_of(*trails)], True)
    assert assembler.shared == len(trails) - 1
    return found


def identity(paths: ShownPaths, packet: Packet) -> Hashable:
    assert packet.flow
    return paths.identity(packet, packet.flow)


def on_its_own(packet: Packet) -> Packet:
    return evolve(packet, hops=tuple(packet.hops))


@pytest.mark.parametrize("make", [lambda n: delivered(n, 40000 + n), lambda n: forwarded(n, 40000 + n, 20000 + n)])
def test_it_does_not_depend_on_how_a_packet_was_explained(make: Callable[[int], Trail]) -> None:
    paths, packets = ShownPaths(), packets_of(*(make(n) for n in range(1, 5)))
    assert shared_hops(packets[-1])
    for packet in packets:
        assert identity(paths, packet) == identity(paths, on_its_own(packet))
    assert len({identity(paths, packet) for packet in packets}) == len(packets), "each is of another connection"


def test_what_a_socket_asked_for_is_a_part_of_the_path() -> None:
    packet = on_its_own(packets_of(delivered(1, 40001))[0])

    def asked(address: str) -> Packet:
        return evolve(packet, hops=(*packet.hops, syns.decision_detail("connect", packet.hops[-1].time, asked=address)))

    paths = ShownPaths()
    first, second, other = (identity(paths, asked(address)) for address in ("10.96.0.10:53", "10.96.0.10:53", "10.96.0.11:53"))
    assert first == second != other
    assert identity(paths, packet) not in (first, other)


def test_another_port_that_is_by_chance_the_one_that_a_connection_chose() -> None:
    """The pod's port of a path is the source port of one of its connections."""
    paths, packets = ShownPaths(), packets_of(*(forwarded(n, 40000 + n, 20000 + n) for n in range(1, 5)))
    hops = shared_hops(packets[-1])
    assert hops
    chance = packets[2].endpoints.sport
    ends = [p._replace(ends=evolve(p.ends, dport=chance)) if p.ends.dport == POD_PORT else p for p in hops.path.ends]
    path = SharedPath(hops.path.hops, tuple(ends))
    for packet in packets[1:]:
        own = shared_hops(packet)
        assert own
        shared = evolve(packet, hops=own.on(path))
        assert identity(paths, shared) == identity(paths, on_its_own(shared))
