# SPDX-License-Identifier: Apache-2.0
"""Scenes that make each cause of docs/syns.md for real on the small node, each with traffic of its own port.

A scene is one row of SCENES: its port, the cause that its SYNs must have, other causes that come with it (SYNs that fill a
queue are accepted), and how it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from scenes import traffic
from tests.kernel import syn_makers as make
from tests.kernel.sides import V4, V6, Side


@dataclass(frozen=True)
class Scene:
    """A scene. port: of its SYNs. cause: expected cause of at least `least` SYNs. also: causes that come with it."""

    name: str
    port: int
    cause: str
    make: Callable[[Side, int], Iterator[None]]
    also: tuple[str, ...] = ()
    least: int = 1
    side: Side = V4

    @contextmanager
    def up(self) -> Iterator[None]:
        """Builds the scene and makes its traffic; its listener exists until the block ends."""
        yield from self.make(self.side, self.port)


SCENES = (
    Scene("answered", traffic.NODEPORT_HTTP, "accepted", make.accepted, least=3),
    Scene("listener that does not accept", 9101, "accept queue full", make.accept_queue, ("accepted",), 2),
    Scene("flood, cookies off", 9102, "SYN queue full", make.syn_queue, ("half-open",), 3),
    Scene("flood, cookies on", 9103, "SYN cookie sent", make.cookies, ("half-open",), 3),
    Scene("two clients behind one SNAT address", 9104, "old timestamp", make.old_timestamp, ("accepted",)),
    Scene("a number before the connection in TIME_WAIT", 9122, "connection in TIME_WAIT", make.time_wait, ("accepted",)),
    Scene("one tuple for two connections", 9105, "conntrack race lost", make.race, ("accepted",), 2),
    Scene("conntrack's table full", 9106, "conntrack table full", make.table_full, (), 2),
    Scene("a bad checksum", 9107, "conntrack INVALID", make.invalid, (), 3),
    Scene("rp_filter", 9108, "rp_filter", make.rp_filter, (), 3),
    Scene("the node's own address as source", 9109, "martian source", make.martian, (), 3),
    Scene("blackhole route", 9110, "no route", make.blackhole, (), 2),
    Scene("neighbour that does not answer", 9111, "neighbour failed", make.neighbour),
    Scene("DROP rule", 9112, "dropped by rule", make.drop_rule, (), 2),
    Scene("REJECT rule", 9113, "rejected", make.reject_rule, (), 2),
    Scene("no endpoints", traffic.NODEPORT_LONELY, "no endpoints", make.plain, (), 2),
    Scene("no listener", 9115, "no listener", make.plain, (), 2),
    Scene("listener on another address", 9116, "listener on another address", make.other_address, (), 2),
    Scene("silent endpoint", 9117, "no answer", make.silent, (), 2),
    Scene("reply by another path", 9118, "SYN-ACK not recognised", make.other_path, (), 2),
    Scene("old connection", 9119, "old connection", make.old_connection, ("accepted",)),
    Scene("client that never comes back", 9120, "half-open already", make.half_open, ("half-open",)),
    Scene("silent pod", 9121, "dropped by rule", make.dropped_in_the_pod, (), 2),
    Scene("IPv6: answered", traffic.NODEPORT_HTTP, "accepted", make.accepted, (), 3, V6),
    Scene("IPv6: listener that does not accept", 9201, "accept queue full", make.accept_queue, ("accepted",), 2, V6),
    Scene("IPv6: flood, cookies off", 9202, "SYN queue full", make.syn_queue, ("half-open",), 3, V6),
    Scene("IPv6: flood, cookies on", 9203, "SYN cookie sent", make.cookies, ("half-open",), 3, V6),
    Scene("IPv6: two clients behind one SNAT address", 9204, "old timestamp", make.old_timestamp, ("accepted",), 1, V6),
    Scene("IPv6: one tuple for two connections", 9205, "conntrack race lost", make.race, ("accepted",), 2, V6),
    Scene("IPv6: blackhole route", 9210, "no route", make.blackhole, (), 2, V6),
    Scene("IPv6: neighbour that does not answer", 9211, "neighbour failed", make.neighbour, (), 1, V6),
    Scene("IPv6: DROP rule", 9212, "dropped by rule", make.drop_rule, (), 2, V6),
    Scene("IPv6: REJECT rule", 9213, "rejected", make.reject_rule, (), 2, V6),
    Scene("IPv6: no endpoints", traffic.NODEPORT_LONELY, "no endpoints", make.plain, (), 2, V6),
    Scene("IPv6: no listener", 9215, "no listener", make.plain, (), 2, V6),
    Scene("IPv6: listener on another address", 9216, "listener on another address", make.other_address, (), 2, V6),
    Scene("IPv6: silent endpoint", 9217, "no answer", make.silent, (), 2, V6),
    Scene("IPv6: old connection", 9219, "old connection", make.old_connection, ("accepted",), 1, V6),
)
"""In the order in which they are made."""
