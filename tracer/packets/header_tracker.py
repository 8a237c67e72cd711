# SPDX-License-Identifier: Apache-2.0
"""A packet's header from event to event: what short ones left out, rewrites that are confirmed, changes nobody announced."""

from __future__ import annotations

from collections.abc import Callable

from tracer.events import record
from tracer.events.record import Event, Flag, Kind
from tracer.model.evidence import Evidence
from tracer.model.packet import Endpoints, Hop, Nat
from tracer.util.frozen import evolve


def completed(events: list[Event], whole: Event | None = None) -> tuple[list[Event], Event | None]:
    """Short events with what they left out, and the event that later ones refer to. Where the whole event they refer to was
    lost, their header is unknown, and so is what a rewrite made of it. whole: the event they refer to if it came before these.
    """
    out = []
    for e in events:
        if e.flags & Flag.FLAG_SAME:
            if not whole and e.kind == Kind.EVENT_NAT:
                continue
            e = record.completed(e, whole) if whole else e._replace(flags=e.flags | Flag.FLAG_NO_HEADER)
        elif not e.flags & (Flag.FLAG_NO_HEADER | Flag.FLAG_CLONE):
            # IPVS's connection is another: nothing may be completed from it.
            whole = None if e.kind == Kind.EVENT_IPVS else e
        if whole and e.kind == Kind.EVENT_NAT and not e.flags & Flag.FLAG_CLONE:
            whole = record.rewritten(e)
        out.append(e)
    return out, whole


def followed(events: list[Event], make: Callable[[Event], Hop]) -> list[Hop]:
    """The hops, with each rewrite confirmed by the header seen next, and changes nobody announced added.

    make: the hop of one event.
    """
    hops: list[Hop] = []
    expected: Endpoints | None = None
    announced = -1
    for e in events:
        hop = make(e)
        if not e.flags & (Flag.FLAG_NO_HEADER | Flag.FLAG_CLONE | Flag.FLAG_FRAGMENT):
            seen = record.header(e)
            if announced >= 0 and seen == expected:
                hops[announced] = evolve(hops[announced], evidence=Evidence.OBSERVED)
            elif expected and seen != expected and record.family(e) == _family_of(expected):
                hops.append(_unannounced(hop, expected, seen))
            announced, expected = -1, seen
        if hop.nat:
            if hop.nat.before == hop.nat.after:
                continue
            announced, expected = len(hops), hop.nat.after
        # IPv4 on an IPv6 socket: tcp_v6_syn_recv_sock calls tcp_v4_syn_recv_sock, and both report.
        if not (hop.handshake and hops and hops[-1].handshake == hop.handshake):
            hops.append(hop)
    return hops


def as_it_came(first: Event, hops: list[Hop]) -> Endpoints:
    """The header as the packet came in: the first event may have been written after its hook's NAT."""
    nat = next((h.nat for h in hops if h.nat), None)
    return nat.before if nat and nat.after == record.header(first) else record.header(first)


def _family_of(ends: Endpoints) -> str:
    return "IPv6" if ":" in ends.src else "IPv4"


def _unannounced(hop: Hop, before: Endpoints, after: Endpoints) -> Hop:
    """A header that changed between two events: ICMP errors about a translated connection, for one, change so."""
    nat = Nat("rewritten", before, after)
    return Hop(hop.time, "nat", hop.netns, hook=hop.hook, nat=nat, evidence=Evidence.DERIVED)
