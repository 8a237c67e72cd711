# SPDX-License-Identifier: Apache-2.0
"""Drops of packets that a rule handed to a queue (NFQUEUE): by the function that freed the packet.

The kernel gives no reason. A process answered that it must not pass, or the queue was emptied because the process ended:
both free it in the same function. Source: net/netfilter/nfnetlink_queue.c, nfqnl_recv_verdict() and nfqnl_flush();
nf_reinject() was in net/netfilter/nf_queue.c before commit 3f8019688894 ("netfilter: move nf_reinject into nfnetlink_queue
modules").
"""

from __future__ import annotations

from tracer.model.hop import Drop

FUNCTIONS = frozenset({"nf_reinject", "nfqnl_reinject", "nfqnl_recv_verdict", "nfqnl_recv_verdict_batch"})
"""Functions that free a packet for a process's answer, with those that the compiler may merge with them."""
SENTENCE = "by the process behind a queue (NFQUEUE), or because that process ended"


def is_queue_drop(drop: Drop) -> bool:
    """Whether a packet was freed instead of going on from a queue."""
    return drop.reason in ("", "NOT_SPECIFIED") and drop.function.partition(".")[0] in FUNCTIONS
