# SPDX-License-Identifier: Apache-2.0
"""Drops of packets that a rule handed to a queue (NFQUEUE): by the function that freed the packet, and the hop before.

The kernel gives no reason, and three causes look the same: the process behind the queue answered that the packet must not pass;
it ended, which empties the queue; or it let the packet pass, and a later function of the same hook dropped it, such as
conntrack or NAT, because these functions are called there, too. Only rules, translations and details of such a function show
that the packet came back. Source: net/netfilter/nfnetlink_queue.c, nf_reinject() and nfqnl_flush(); nf_reinject() was in
net/netfilter/nf_queue.c before commit 3f8019688894 ("netfilter: move nf_reinject into nfnetlink_queue modules").
"""

from __future__ import annotations

from collections.abc import Sequence

from tracer.model.hop import DropHop, Hop, verdict_of
from tracer.model.netfilter import Verdict

FUNCTIONS = frozenset({"nf_reinject", "nfqnl_reinject", "nfqnl_recv_verdict", "nfqnl_recv_verdict_batch"})
"""Functions that free a packet for a process's answer, with those that the compiler may merge with them."""
SENTENCE = "behind a queue (NFQUEUE): its process did not let it pass or ended, or a later function of the hook dropped it"


def is_behind_queue(hops: Sequence[Hop], drop: DropHop) -> bool:
    """Whether a packet was freed instead of going on from a queue, and nothing was seen of it since the queue took it.

    Args:
        hops: The packet's hops, without those of copies.
        drop: One of them.
    """
    at = next(number for number, hop in enumerate(hops) if hop is drop)
    is_held = at > 0 and hops[at - 1].netns == drop.netns and verdict_of(hops[at - 1]) in (Verdict.QUEUE, Verdict.STOLEN)
    return is_held and drop.drop.reason in ("", "NOT_SPECIFIED") and drop.drop.function.partition(".")[0] in FUNCTIONS
