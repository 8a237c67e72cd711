# SPDX-License-Identifier: Apache-2.0
"""Owners of packets that take a shared path: found for the first one, repeated for the others.

Owners depend on the path, on addresses, which packets of a shared path have in common, and on the objects of the cluster. They
depend on a port that a connection chose only if an object has that port, or if their text has it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import astuple
from typing import NamedTuple

from tracer.kube.catalog import ClusterView
from tracer.kube.owner_resolver import OwnerResolver
from tracer.model.hop import owner_of
from tracer.model.kube import Owner
from tracer.model.packet import Packet
from tracer.packets.path_memo import PathMemo
from tracer.packets.shared_packet import AnyPacket, ConnectionPath, SharedPacket
from tracer.packets.shared_path import PathHops, Ports, SharedPath, shared_hops
from tracer.util.frozen import evolve
from tracer.util.lru_dict import LruDict


class _OwnedPath(NamedTuple):
    """A path with owners.

    Attributes:
        version: Version of the cluster that they were found in.
        path: The path; its hops have their owners.
        source: Owner of the packets' source.
        destination: Owner of the packets' destination.
        lookups: Number of look-ups in the CNI cache that found them.
    """

    version: Hashable
    path: SharedPath
    source: Owner | None
    destination: Owner | None
    lookups: int


class _OwnedWay(NamedTuple):
    """What packets of one connection on a path have in common, with owners.

    Attributes:
        version: Version of the cluster that they were found in.
        way: The path with the ports of the connection.
        lookups: Number of look-ups in the CNI cache that found them.
    """

    version: Hashable
    way: ConnectionPath
    lookups: int


PORTS_KEPT = 4096
"""Most connections of which is kept whether an object of the cluster has one of their ports."""


class SharedOwners:
    """Sets the owners of packets. kube: finds the owners of the first packet of each path."""

    def __init__(self, kube: OwnerResolver) -> None:
        self._kube, self._addresses = kube, PathMemo(_addresses)
        self._unknown: LruDict[Hashable, bool] = LruDict(PORTS_KEPT, "ports of connections")
        self._version: Hashable = None

    def attribute(self, packet: Packet) -> Packet:
        """The packet with its owners."""
        hops = shared_hops(packet)
        if hops is None:
            return self._kube.attribute(packet)
        cluster = self._kube.cluster
        version = cluster.version
        if version != self._version:
            self._unknown.clear()
            self._version = version
        if not self._has_unknown_ports(packet, hops, cluster):
            return self._kube.attribute(evolve(packet, hops=tuple(hops)))
        owned = hops.path.kept.get(self)
        if isinstance(owned, _OwnedPath) and owned.version == version and cluster.sandboxes.skip(owned.lookups):
            return evolve(packet, hops=hops.on(owned.path), src_owner=owned.source, dst_owner=owned.destination)
        before = cluster.sandboxes.lookups
        found = self._kube.attribute(packet)
        lookups = cluster.sandboxes.lookups - before
        if cluster.version != version or _mention(found, hops):
            return found
        path = hops.path.with_hops(found.hops)
        hops.path.kept[self] = _OwnedPath(version, path, found.src_owner, found.dst_owner, lookups)
        return evolve(found, hops=hops.on(path))

    def repeat(self, packet: SharedPacket) -> AnyPacket:
        """The packet with its owners; it stays on its path if they are those of other packets of its connection."""
        way, cluster = packet.way, self._kube.cluster
        owned = way.kept.get(self)
        if isinstance(owned, _OwnedWay) and owned.version == cluster.version and cluster.sandboxes.skip(owned.lookups):
            packet.move(owned.way)
            return packet
        found, path = self.attribute(packet.packet()), way.path.kept.get(self)
        hops = shared_hops(found)
        if not isinstance(path, _OwnedPath) or not hops or hops.path is not path.path:
            return found
        sample = evolve(way.sample, src_owner=path.source, dst_owner=path.destination)
        own = ConnectionPath(sample, path.path, way.ports, way.rows)
        way.kept[self] = _OwnedWay(path.version, own, path.lookups)
        packet.move(own)
        return packet

    def _has_unknown_ports(self, packet: Packet, hops: PathHops, cluster: ClusterView) -> bool:
        """Whether no object of the cluster has a port that the packet's connection chose."""
        key = packet.protocol, hops.ports, self._addresses.of(packet)
        found = self._unknown.get(key)
        if found is None:
            found = self._unknown[key] = not any(_knows(cluster, *key))
        return found


def _knows(cluster: ClusterView, protocol: str, ports: Ports, addresses: Sequence[str]) -> Iterator[bool]:
    """For each port, whether an object of the cluster has it, at a node or at one of these addresses."""
    found_at, name = cluster.store.by_address.all, protocol.lower()
    for port in filter(None, ports):
        yield cluster.has_port(port, name) or any([found_at((address, port, name)) for address in addresses])


def _addresses(packet: Packet) -> tuple[str, ...]:
    """The addresses that packets of the path have."""
    hops = shared_hops(packet)
    ends = [packet.endpoints, *(pattern.ends for pattern in (hops.path.ends if hops else ()))]
    return tuple(dict.fromkeys(address for each in ends for address in (each.src, each.dst)))


def _mention(packet: Packet, hops: PathHops) -> bool:
    """Whether the text of an owner has a port that the packet's connection chose."""
    owners = {packet.src_owner, packet.dst_owner, *map(owner_of, packet.hops)}
    texts = [text for owner in owners if owner for text in astuple(owner)]
    return any(str(port) in text for text in texts for port in hops.ports if port)
