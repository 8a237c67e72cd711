# SPDX-License-Identifier: Apache-2.0
"""Tracks a packet's header from event to event.

Fills in the fields that short events leave out, confirms announced rewrites by the next event, and adds header changes that no
event announced.
"""

from __future__ import annotations

from collections.abc import Callable

from tracer.events import record
from tracer.events.record import Event, Flag, Kind
from tracer.model.endpoints import Endpoints
from tracer.model.evidence import Evidence
from tracer.model.hop import HandshakeHop, Hop, Nat, NatHop, RewriteHop
from tracer.util.frozen import evolve


def complete_events(events: list[Event], whole: Event | None = None) -> tuple[list[Event], Event | None]:
    """Fills in the header fields that short events leave out.

    If the whole event that a short one refers to was lost, the header is unknown, and so is the result of a rewrite.

    Args:
        events: Events of one packet, in time order.
        whole: The last whole event before these, None = none.

    Returns:
        (events, whole): the completed events, and the event that later short ones refer to.
    """
    out = []
    for e in events:
        if e.flags & Flag.FLAG_SAME:
            if not whole and e.kind == Kind.EVENT_NAT:
                continue
            e = record.completed(e, whole) if whole else e._replace(flags=e.flags | Flag.FLAG_NO_HEADER)
        elif not e.flags & (Flag.FLAG_NO_HEADER | Flag.FLAG_CLONE):
            # These events carry other addresses in the fields of conntrack: no other event may be completed from them.
            whole = None if e.kind in (Kind.EVENT_IPVS, Kind.EVENT_REWRITE) else e
        if whole and e.kind == Kind.EVENT_NAT and not e.flags & Flag.FLAG_CLONE:
            whole = record.rewritten(e)
        out.append(e)
    return out, whole


def build_hops(events: list[Event], make: Callable[[Event], Hop]) -> list[Hop]:
    """Builds the hops; confirms each rewrite by the next header seen, and adds header changes that no event announced.

    Args:
        events: Completed events of one packet, in time order.
        make: Builds the hop of one event.
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
        if isinstance(hop, RewriteHop):
            if hop.nat.before == hop.nat.after:
                continue
            announced, expected = len(hops), hop.nat.after
        # IPv4 on an IPv6 socket: tcp_v6_syn_recv_sock calls tcp_v4_syn_recv_sock, and both report.
        if not (isinstance(hop, HandshakeHop) and hops and _is_same_handshake(hops[-1], hop)):
            hops.append(hop)
    return hops


def original_endpoints(first: Event, hops: list[Hop]) -> Endpoints:
    """Addresses of the packet as it came in. The first event may have been written after the NAT of its hook."""
    nat = next((h.nat for h in hops if isinstance(h, RewriteHop)), None)
    return nat.before if nat and nat.after == record.header(first) else record.header(first)


def _is_same_handshake(hop: Hop, other: HandshakeHop) -> bool:
    return isinstance(hop, HandshakeHop) and hop.handshake == other.handshake


def _family_of(ends: Endpoints) -> str:
    return "IPv6" if ":" in ends.src else "IPv4"


def _unannounced(hop: Hop, before: Endpoints, after: Endpoints) -> NatHop:
    """A hop for a header that changed between two events, as ICMP errors about a translated connection do."""
    nat = Nat("rewritten", before, after)
    return NatHop(hop.time, hop.netns, hop.hook, nat=nat, evidence=Evidence.DERIVED)
