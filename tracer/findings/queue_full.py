# SPDX-License-Identifier: Apache-2.0
"""A rule hands packets to a queue (NFQUEUE) that is full, and the kernel drops them.

Its process takes packets more slowly than they come, or has stopped. Either the queue has as many packets as it may hold (1024,
unless its process sets another number), or the messages that the process has not read fill the receive buffer of its netlink
socket. With fail-open the kernel lets these packets pass instead. Source: Linux net/netfilter/nfnetlink_queue.c,
__nfqnl_enqueue_packet().
"""

from __future__ import annotations

from tracer.findings.context import FindingContext
from tracer.findings.proofs import packet_proof, queue_proof, queueing_rule, rule_proof
from tracer.model.finding import Finding
from tracer.model.kube import Owner
from tracer.model.packet import Outcome, Packet
from tracer.packets import queue_details
from tracer.packets.queue_details import BUFFER_FULL, QUEUE_FULL
from tracer.packets.queue_drops import drop_of_packet
from tracer.rules import operator_commands


def find(packet: Packet, context: FindingContext) -> Finding | None:
    queued = drop_of_packet(packet) if packet.outcome is Outcome.DROPPED else None
    if not queued or not queued.detail or queued.cause not in (QUEUE_FULL, BUFFER_FULL):
        return None
    found = queueing_rule(packet, queued.netns)
    owner = (found[0].owner if found else None) or Owner("unknown")
    number = queued.detail.number("queue")
    who = f"a rule of {(owner.program or owner.text) if owner.known else 'an unknown program'}"
    at = f" in {found[2].table}/{found[2].chain}" if found else ""
    if queued.cause == QUEUE_FULL:
        room = queue_details.format_room(queued.detail)
        cause = f"Queue {number} (NFQUEUE) is full{room and f' ({room})'}, and the kernel drops what {who}{at} hands to it:"
        cure = "Or it sets a longer queue (NFQA_CFG_QUEUE_MAXLEN)."
    else:
        cause = (
            f"The receive buffer of the process behind queue {number} (NFQUEUE) is full, and the kernel drops what"
            f" {who}{at} hands to the queue:"
        )
        cure = "Or it sets a larger receive buffer (SO_RCVBUFFORCE)."
    shows = f" `{operator_commands.shows(found[2])}` shows the rule." if found else ""
    return Finding(
        name="",
        key=(packet.netns, str(number), queued.cause),
        cause=f"{cause} the process takes packets more slowly than they come, or not at all.",
        proofs=(
            packet_proof(packet),
            *([rule_proof(found[1], owner.text)] if found else []),
            *queue_proof(queued.detail),
        ),
        check=(
            "`cat /proc/net/netfilter/nfnetlink_queue` has a line for each queue: its number, mostly the process's pid, the"
            " packets that wait; the sixth number counts those dropped by a full queue, the seventh those by a full buffer."
            f"{shows}"
        ),
        cure=(
            f"Look at the process behind queue {number}: its processor limit, its log; several queues share the work."
            f" {cure} With fail-open packets pass while there is no room."
        ),
    )
