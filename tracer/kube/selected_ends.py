# SPDX-License-Identifier: Apache-2.0
"""The addresses and ports that Kubernetes' objects have now: as a filter of the kernel, and to compare packets with.

The kernel's filter has separate sets of addresses and ports (tracer/model/filter.py), so it lets more packets pass than
requested. Then `selects` checks each packet with the exact pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tracer.kube.catalog import ClusterView
from tracer.model.directed_endpoints import directed_endpoints
from tracer.model.endpoints import Endpoints
from tracer.model.filter import MAX_HOSTS, Filter, Network, parse_host
from tracer.model.hop import RewriteHop
from tracer.model.packet import Packet

NOBODY = parse_host("240.0.0.1")
"""In place of an object without an address: it must match nothing, but an empty filter would match everything."""

LOCAL = ""
"""In place of an address: any address of this node."""

End = tuple[str, int, str]
"""address or LOCAL, port (0 = any), protocol ("" = any)."""

DIRECTED = {"sources": "--src", "destinations": "--dst"}
"""Fields of Selectors, DirectedEnds and Filter for one direction, and their options."""


@dataclass(frozen=True)
class DirectedEnds:
    """The selected ends of one direction; None = any.

    Attributes:
        sources: Ends of which one must be the source.
        destinations: Ends of which one must be the destination.
    """

    sources: frozenset[End] | None = None
    destinations: frozenset[End] | None = None


def kernel_filter(
    base: Filter, wanted: frozenset[End] | None, cluster: ClusterView, directed: DirectedEnds = DirectedEnds()
) -> Filter:
    """Returns the filter for the kernel: base, with hosts and ports that let these endpoints pass, and few others.

    Args:
        base: The conditions of the other options.
        wanted: What is selected at either end; None = anything.
        cluster: The objects.
        directed: What is selected as source and as destination.
    """
    for name in DIRECTED:
        base = _with_direction(base, name, getattr(directed, name), cluster)
    if wanted is None:
        return base
    if not wanted:
        return replace(base, hosts=(NOBODY,), ports=())
    hosts = _hosts(wanted, cluster)
    ports = () if any(port == 0 for _, port, _ in wanted) else tuple(sorted({port for _, port, _ in wanted}))
    local_unknown = not cluster.local and any(address == LOCAL for address, _, _ in wanted)
    room = MAX_HOSTS - len(base.sources) - len(base.destinations) - len(base.excluded_hosts)
    if len(hosts) > room or (ports and local_unknown):
        hosts = ()
    return replace(base, hosts=hosts, ports=ports)


def _hosts(wanted: frozenset[End], cluster: ClusterView) -> tuple[Network, ...]:
    """The addresses of these ends."""
    addresses = {address for address, _, _ in wanted if address}
    if any(address == LOCAL for address, _, _ in wanted):
        node = cluster.store.this_node()
        addresses |= {*(cluster.local - cluster.ipvs), *(node.addresses if node else ())}
    return tuple(parse_host(a) for a in sorted(addresses))


def _with_direction(base: Filter, name: str, wanted: frozenset[End] | None, cluster: ClusterView) -> Filter:
    """The filter with the addresses of these ends as sources or destinations; with none, if not all can be given."""
    if wanted is None:
        return base
    hosts = _hosts(wanted, cluster) or (NOBODY,)
    is_local_unknown = not cluster.local and any(address == LOCAL for address, _, _ in wanted)
    room = MAX_HOSTS - sum(map(len, base.hosts_by_role))
    networks = () if is_local_unknown or len(hosts) > room else hosts
    return replace(base, sources=networks) if name == "sources" else replace(base, destinations=networks)


def matches_direction(packet: Packet, directed: DirectedEnds, cluster: ClusterView) -> bool:
    """Whether the source and the destination, in one of the packet's headers or its connection, are selected ones."""
    if directed == DirectedEnds():
        return True
    protocol, headers = _protocol(packet), set(directed_endpoints(packet))
    return all(
        wanted is None or any(_is(address, port, protocol, wanted, cluster) for address, port in pairs)
        for wanted, pairs in (
            (directed.sources, {(each.src, each.sport) for each in headers}),
            (directed.destinations, {(each.dst, each.dport) for each in headers}),
        )
    )


def _protocol(packet: Packet) -> str:
    """The protocol as ends name it; "" = one without ports."""
    protocol = packet.protocol.lower()
    return protocol if protocol in ("tcp", "udp", "sctp") else ""


def matches(packet: Packet, wanted: frozenset[End], cluster: ClusterView) -> bool:
    """Whether one of these endpoints is in the packet, in its connection, or before or after one of its rewrites."""
    protocol = _protocol(packet)
    tuples: list[Endpoints] = [packet.endpoints]
    if packet.flow:
        tuples += [packet.flow.orig, packet.flow.reply]
    for hop in packet.hops:
        if isinstance(hop, RewriteHop):
            tuples += [hop.nat.before, hop.nat.after]
    pairs = {pair for t in tuples for pair in ((t.src, t.sport), (t.dst, t.dport))}
    return any(_is(address, port, protocol, wanted, cluster) for address, port in pairs)


def selects(packet: Packet, wanted: frozenset[End] | None, directed: DirectedEnds, cluster: ClusterView) -> bool:
    """Whether a packet has one of these ends, None = any, and the ends of its direction."""
    return (wanted is None or matches(packet, wanted, cluster)) and matches_direction(packet, directed, cluster)


def _is(address: str, port: int, protocol: str, wanted: frozenset[End], cluster: ClusterView) -> bool:
    local = cluster.is_local(address) or not cluster.local
    places = (address, LOCAL) if local else (address,)
    protocols = (protocol, "") if protocol else ("", "tcp", "udp", "sctp")
    return any((place, p, proto) in wanted for place in places for p in (port, 0) for proto in protocols if place or p)
