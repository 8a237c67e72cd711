# SPDX-License-Identifier: Apache-2.0
"""How many clients share one address: those that a SNAT was seen to give it."""

from __future__ import annotations

from tracer.model.packet import Nat, Packet

MOST_ADDRESSES, MOST_CLIENTS = 1000, 10_000
SNATS = ("SNAT", "MASQUERADE")


def snat(packet: Packet) -> Nat | None:
    """The rewrite that gave a packet another source address."""
    return next((h.nat for h in packet.hops if h.nat and h.nat.kind in SNATS and h.nat.before.src != h.nat.after.src), None)


class SnatClients:
    """Clients by the address that they were given. Counts stop where there are too many to keep."""

    def __init__(self) -> None:
        self._clients: dict[str, set[str]] = {}

    def feed(self, packet: Packet) -> None:
        """Takes a packet that is over."""
        given = snat(packet)
        if not given:
            return
        clients = self._clients.get(given.after.src)
        if clients is None and len(self._clients) < MOST_ADDRESSES:
            clients = self._clients[given.after.src] = set()
        if clients is not None and len(clients) < MOST_CLIENTS:
            clients.add(given.before.src)

    def clients(self, packet: Packet) -> int:
        """How many were seen behind this packet's new address; 0 when it has kept its own."""
        given = snat(packet)
        return len(self._clients.get(given.after.src, ())) if given else 0
