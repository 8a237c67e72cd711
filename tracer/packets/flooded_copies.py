# SPDX-License-Identifier: Apache-2.0
"""Which copy of a packet is the packet, where a bridge floods it.

A bridge that does not know (any more) behind which port an address is sends a copy to each port, and the packet itself to the
last one. Each namespace but one then drops what it gets: its link address is another's. The copy that was not dropped so is
the packet that was asked about; what the last port got is a copy like the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracer.model.other_host import for_another_host
from tracer.model.packet import Drop, Hop
from tracer.packets import purged
from tracer.util.frozen import evolve

RECEIVE = frozenset({"ip_rcv_core", "ip_rcv", "ip6_rcv_core", "ipv6_rcv"})
"""Functions that drop what is for another link address. Before 5.18 they give no reason for it (commit "net: ipv4: use
kfree_skb_reason() in ip_rcv_core()")."""


def settled(hops: Sequence[Hop]) -> list[Hop]:
    """The hops, those of the copy that counts no longer marked as a copy's. Where no copy or more than one may count, as they
    are.
    """
    kept = list(hops)
    own = [h for h in kept if not h.clone]
    if len(own) == len(kept) or not own or not _refused(own[-1].drop):
        return kept
    last, elsewhere = own[-1], {h.netns for h in own} | {h.netns for h in kept if h.clone and _refused(h.drop)}
    takers = {h.netns for h in kept if _stays(h) and h.netns not in elsewhere}
    if not for_another_host(last.drop):
        # Without a reason a receive function may have dropped it for another cause: only a socket tells who got it.
        takers = {h.netns for h in kept if h.netns in takers and (h.socket or h.handshake)}
    if len(takers) != 1:
        return kept
    return [evolve(h, clone=h is last or (h.clone and not (h.netns in takers and _stays(h)))) for h in kept]


def of_no_one(hop: Hop) -> bool:
    """Whether this is the end of a copy that does not belong where it got to."""
    return hop.clone and for_another_host(hop.drop)


def _refused(drop: Drop | None) -> bool:
    return for_another_host(drop) or bool(drop and drop.reason in ("", "NOT_SPECIFIED") and drop.function in RECEIVE)


def _stays(hop: Hop) -> bool:
    """Whether it is of a copy that went on through the stack: not one that a packet socket got."""
    return hop.clone and not (hop.drop and (purged.undecided(hop.drop) or purged.taken_by(hop.drop)))
