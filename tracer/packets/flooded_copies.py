# SPDX-License-Identifier: Apache-2.0
"""Finds the copy that reached the destination when a bridge floods a packet.

A bridge that does not (or no longer) know the port of an address sends a copy to each port, and the packet itself to the last
port. Each namespace but one then drops what it receives, because the link address is that of another host. The copy that was
not dropped for this reason is treated as the packet. What the last port received is treated as a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracer.model.hop import DropHop, HandshakeHop, Hop, SocketHop
from tracer.model.other_host import for_another_host
from tracer.packets import purged
from tracer.util.frozen import evolve

RECEIVE_FUNCTIONS = frozenset({"ip_rcv_core", "ip_rcv", "ip6_rcv_core", "ipv6_rcv"})
"""Kernel functions that drop packets for another link address. Before 5.18 they give no drop reason (commit "net: ipv4: use
kfree_skb_reason() in ip_rcv_core()")."""


def resolve_copies(hops: Sequence[Hop]) -> list[Hop]:
    """Clears the copy mark on the hops of the copy that reached the destination, and sets it on those of the dropped original.

    Args:
        hops: All hops of one packet, its copies included, in time order.

    Returns:
        The same hops, unchanged if no copy, or more than one, may have reached the destination.
    """
    kept = list(hops)
    own = [h for h in kept if not h.clone]
    if len(own) == len(kept) or not own or not _is_refused(own[-1]):
        return kept
    last, refusing = own[-1], {h.netns for h in own} | {h.netns for h in kept if h.clone and _is_refused(h)}
    receivers = {h.netns for h in kept if _is_in_stack(h) and h.netns not in refusing}
    if not for_another_host(last):
        # A receive function that gives no reason may have dropped it for another cause: then only a socket proves the receiver.
        receivers = {h.netns for h in kept if h.netns in receivers and isinstance(h, (SocketHop, HandshakeHop))}
    if len(receivers) != 1:
        return kept
    return [evolve(h, clone=h is last or (h.clone and not (h.netns in receivers and _is_in_stack(h)))) for h in kept]


def is_refused_copy(hop: Hop) -> bool:
    """Whether this hop is the drop of a copy that is addressed to another host."""
    return hop.clone and for_another_host(hop)


def _is_refused(hop: Hop) -> bool:
    if not isinstance(hop, DropHop):
        return False
    has_no_reason = hop.drop.reason in ("", "NOT_SPECIFIED")
    return for_another_host(hop) or (has_no_reason and hop.drop.function in RECEIVE_FUNCTIONS)


def _is_in_stack(hop: Hop) -> bool:
    """Whether the hop belongs to a copy that went on through the stack, not to a packet socket's copy."""
    if isinstance(hop, DropHop) and (purged.has_unknown_receiver(hop.drop) or purged.receiver(hop.drop)):
        return False
    return hop.clone
