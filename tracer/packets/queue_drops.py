# SPDX-License-Identifier: Apache-2.0
"""Drops of packets that a rule handed to a queue (NFQUEUE): by the function that freed the packet, and what the queue did.

The kernel gives no reason. It frees a packet in the function that takes the answer of the process behind the queue, for several
causes: the answer is DROP; the queue is emptied, because the process ended, an interface went down or rules were removed; or
the process let the packet pass, and a later function of the same hook dropped it, such as conntrack or NAT, because these
functions are called there, too. The decision detail of the queue tells them apart (bpf/probes/nfqueue.h). Without it, as in
captures of earlier versions, only hops of a later function show that the packet came back. A packet that a queue does not take
is freed in nf_queue(). Source: net/netfilter/nfnetlink_queue.c, nfqnl_reinject() and nfqnl_flush(), and nf_queue.c;
nf_reinject() was in the latter before commit 3f8019688894 ("netfilter: move nf_reinject into nfnetlink_queue modules").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracer.model.hop import QUEUE_ANSWER, QUEUE_REFUSED, DecisionDetail, DetailHop, DropHop, Hop, RuleHop, verdict_of
from tracer.model.namespace_name import Netns
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Packet
from tracer.packets import queue_details
from tracer.packets.queue_details import BUFFER_FULL, ENDED, INTERFACE_DOWN, NO_PROCESS, PROCESS, QUEUE_FULL, RULES_REMOVED

FUNCTIONS = frozenset({"nf_reinject", "nfqnl_reinject", "nfqnl_recv_verdict", "nfqnl_recv_verdict_batch"})
"""Functions that free a packet for a process's answer, with those that the compiler may merge with them."""
ENQUEUEING, SEGMENTING = "nf_queue", "nfqnl_enqueue_packet"
"""Functions that free a packet which a queue does not take, and one of which the queue has taken all segments (GSO)."""
UNKNOWN, LATER_FUNCTION, SEGMENTED, OTHER_ERROR = "", "later function", "segmented", "other error"
"""Further causes, beside those of queue_details."""
SENTENCE = "behind a queue (NFQUEUE): its process did not let it pass or ended, or a later function of the hook dropped it"


@dataclass(frozen=True)
class QueueDrop:
    """The drop of a packet at a queue.

    Attributes:
        netns: Where.
        cause: Why it was freed: a constant of this module or of queue_details.
        hook: The hook of the queue; NONE = not known.
        detail: What the queue did; None = not seen.
    """

    netns: Netns
    cause: str
    hook: Hook = Hook.NONE
    detail: DecisionDetail | None = None


def queue_drop(hops: Sequence[Hop], drop: DropHop) -> QueueDrop | None:
    """The drop as one of a queue; None = another one.

    Args:
        hops: The packet's hops, without those of copies.
        drop: One of them.
    """
    if drop.drop.reason not in ("", "NOT_SPECIFIED"):
        return None
    at = next(number for number, hop in enumerate(hops) if hop is drop)
    before = [hop for hop in hops[:at] if hop.netns == drop.netns]
    hook = next((hop.hook for hop in reversed(before) if hop.hook), Hook.NONE)
    seen = _last_detail(before)
    is_held = bool(before) and hops[at - 1].netns == drop.netns and verdict_of(hops[at - 1]) in (Verdict.QUEUE, Verdict.STOLEN)
    function = drop.drop.function.partition(".")[0]
    if function in FUNCTIONS and seen and seen.what == QUEUE_ANSWER:
        passed = queue_details.verdict_of(seen) is not Verdict.DROP
        return QueueDrop(drop.netns, LATER_FUNCTION if passed else queue_details.reason_of(seen), hook, seen)
    if function in FUNCTIONS and is_held:
        return QueueDrop(drop.netns, UNKNOWN, hook)
    if function == ENQUEUEING and seen and seen.what == QUEUE_REFUSED:
        return QueueDrop(drop.netns, queue_details.reason_of(seen) or OTHER_ERROR, hook, seen)
    if function == SEGMENTING and is_held:
        return QueueDrop(drop.netns, SEGMENTED, hook)
    return None


def drop_of_packet(packet: Packet) -> QueueDrop | None:
    """The packet's last drop as one of a queue; None = another one, or none."""
    hops = [hop for hop in packet.hops if not hop.clone]
    drop = next((hop for hop in reversed(hops) if isinstance(hop, DropHop)), None)
    return queue_drop(hops, drop) if drop else None


def _last_detail(hops: Sequence[Hop]) -> DecisionDetail | None:
    """What a queue did last, unless a rule has handed the packet to a queue since."""
    for hop in reversed(hops):
        if isinstance(hop, DetailHop) and queue_details.is_of_queue(hop.detail):
            return hop.detail
        if isinstance(hop, RuleHop) and hop.verdict is Verdict.QUEUE:
            return None
    return None


_KERNEL_EMPTIED = {
    ENDED: "its process ended or let go of it, and the kernel drops what waits",
    INTERFACE_DOWN: "an interface went down, and the kernel drops what waits for it",
    RULES_REMOVED: "rules of the hook were removed, and the kernel drops what waits",
}


def format_queue_drop(drop: QueueDrop) -> str:
    """Why the packet was dropped, after the word DROPPED; "" = it was not dropped at a queue, or not at all."""
    detail = drop.detail
    if drop.cause == UNKNOWN or detail is None:
        return SENTENCE if drop.cause == UNKNOWN else ""
    queue = f"{queue_details.format_queue(detail)} (NFQUEUE)"
    if drop.cause == PROCESS:
        return f"behind {queue}: {queue_details.format_process(detail)} answered DROP"
    if drop.cause in _KERNEL_EMPTIED:
        return f"behind {queue}: {_KERNEL_EMPTIED[drop.cause]}"
    if drop.cause == QUEUE_FULL:
        return f"at {queue}, which is {queue_details.format_detail(detail)}"
    if drop.cause in (BUFFER_FULL, NO_PROCESS, OTHER_ERROR):
        return f"at {queue}: {queue_details.format_detail(detail)}"
    if drop.cause == LATER_FUNCTION:
        return f"{f'in {drop.hook} ' * bool(drop.hook)}after {queue}, which let it pass: by a later function of the hook"
    return ""
