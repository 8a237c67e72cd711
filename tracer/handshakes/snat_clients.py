# SPDX-License-Identifier: Apache-2.0
"""Counts the clients that share one address, from the SNAT rewrites that were seen."""

from __future__ import annotations

from tracer.model.hop import Nat, RewriteHop
from tracer.model.packet import Packet
from tracer.packets.path_memo import PathMemo
from tracer.packets.shared_packet import AnyPacket
from tracer.util.evictions import evictions
from tracer.util.lru_dict import LruDict

MAX_ADDRESSES, MAX_CLIENTS = 1000, 1000
SNATS = ("SNAT", "MASQUERADE")


def find_snat(packet: Packet) -> Nat | None:
    """The rewrite that gave a packet another source address."""
    rewrites = (h.nat for h in packet.hops if isinstance(h, RewriteHop))
    return next((nat for nat in rewrites if nat.kind in SNATS and nat.before.src != nat.after.src), None)


def _sources(packet: Packet) -> tuple[str, str] | None:
    """The packet's source address before and after that rewrite."""
    nat = find_snat(packet)
    return (nat.before.src, nat.after.src) if nat else None


class SnatClients:
    """Clients by the source address that SNAT gave them. Bounded by MAX_ADDRESSES, and by MAX_CLIENTS per address."""

    def __init__(self) -> None:
        self._sources = PathMemo(_sources)
        self._clients: LruDict[str, set[str]] = LruDict(MAX_ADDRESSES, "addresses that clients share")

    def feed(self, packet: AnyPacket) -> None:
        """Takes a closed packet."""
        found = self._sources.of(packet)
        if not found:
            return
        client, address = found
        clients = self._clients.get(address)
        if clients is None:
            clients = self._clients[address] = set()
        if len(clients) < MAX_CLIENTS:
            clients.add(client)
        elif client not in clients:
            evictions.add("clients of one address")

    def clients(self, packet: Packet) -> int:
        """Number of clients seen behind this packet's new address; 0 = it has kept its own address, or there are too many to
        count."""
        found = self._sources.of(packet)
        count = len(self._clients.get(found[1], ())) if found else 0
        return 0 if count >= MAX_CLIENTS or self._clients.evicted else count
