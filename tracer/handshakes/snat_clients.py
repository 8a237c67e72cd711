# SPDX-License-Identifier: Apache-2.0
"""Counts the clients that share one address, from the SNAT rewrites that were seen."""

from __future__ import annotations

from tracer.model.packet import Nat, Packet

MAX_ADDRESSES, MAX_CLIENTS = 1000, 10_000
SNATS = ("SNAT", "MASQUERADE")


def find_snat(packet: Packet) -> Nat | None:
    """The rewrite that gave a packet another source address."""
    return next((h.nat for h in packet.hops if h.nat and h.nat.kind in SNATS and h.nat.before.src != h.nat.after.src), None)


class SnatClients:
    """Clients by the source address that SNAT gave them. Bounded by MAX_ADDRESSES, and by MAX_CLIENTS per address."""

    def __init__(self) -> None:
        self._clients: dict[str, set[str]] = {}

    def feed(self, packet: Packet) -> None:
        """Takes a closed packet."""
        nat = find_snat(packet)
        if not nat:
            return
        clients = self._clients.get(nat.after.src)
        if clients is None and len(self._clients) < MAX_ADDRESSES:
            clients = self._clients[nat.after.src] = set()
        if clients is not None and len(clients) < MAX_CLIENTS:
            clients.add(nat.before.src)

    def clients(self, packet: Packet) -> int:
        """Number of clients seen behind this packet's new address; 0 when it has kept its own address."""
        nat = find_snat(packet)
        return len(self._clients.get(nat.after.src, ())) if nat else 0
