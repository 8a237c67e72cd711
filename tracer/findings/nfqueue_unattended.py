# SPDX-License-Identifier: Apache-2.0
"""A rule hands packets to a queue for a process (NFQUEUE), no process is bound to the queue, and the kernel drops them.

With `bypass` the kernel goes on with the next rule instead. Intrusion detection, some CNI plugins and shapers write such rules;
after a crash of their process the rules stay. Source: Linux net/netfilter/nf_queue.c, nf_queue().
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tracer.findings.context import FindingContext
from tracer.findings.proofs import packet_proof, queueing_rule, rule_proof
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import DropHop, alike_of
from tracer.model.kube import Owner
from tracer.model.namespace_name import is_host
from tracer.model.packet import Outcome, Packet
from tracer.model.rule import Rule
from tracer.node.node_questions import PacketQueues
from tracer.packets.queue_details import NO_PROCESS
from tracer.packets.queue_drops import drop_of_packet
from tracer.rules import operator_commands
from tracer.util.questions import value_of

QUEUES = PacketQueues()
ASKS = (QUEUES,)

_IPTABLES = re.compile(r"-j NFQUEUE(?: --queue-(?:num (\d+)|balance (\d+):(\d+)))?")
_NFT = re.compile(
    r"(?<!jump )(?<!goto )\bqueue(?: flags [a-z,]+)?(?: (?:num|to) (\d+)(?:-(\d+))?)?(?: fanout)?(?: comment \"\")?$"
)
_BYPASS = re.compile(r"--queue-bypass|\bqueue\b.*\bbypass\b")
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')
MOST_QUEUES = 1 << 16


def find(packet: Packet, context: FindingContext) -> Finding | None:
    drops = alike_of(packet.hops, DropHop) if packet.outcome is Outcome.DROPPED else []
    if not drops or drops[-1].drop.function != "nf_queue" or not is_host(drops[-1].netns):
        return None
    found = queueing_rule(packet, drops[-1].netns)
    queues = range_of(found[2]) if found else None
    seen = drop_of_packet(packet)
    if seen and seen.cause != NO_PROCESS:
        return None
    number = seen.detail.number("queue") if seen and seen.detail else None
    if found and number is not None:
        queues = queues or range(number, number + 1)
    if not found or queues is None:
        return None
    hop, hit, rule = found
    owner = hop.owner or Owner("unknown")
    return conflict(rule, queues, owner, [packet_proof(packet), rule_proof(hit, owner.text)], context, number)


def range_of(rule: Rule) -> range | None:
    """Returns the queues that a rule without `bypass` hands packets to; None for any other rule."""
    text = _QUOTED.sub('""', rule.text)
    found = _IPTABLES.search(text)
    if _BYPASS.search(text):
        return None
    if found:
        first, last = (found[2], found[3]) if found[2] else (found[1] or "0", found[1] or "0")
    else:
        by_nft = _NFT.search(text)
        if not by_nft:
            return None
        first, last = by_nft[1] or "0", by_nft[2] or by_nft[1] or "0"
    queues = range(int(first), int(last) + 1)
    return queues if 0 < len(queues) <= MOST_QUEUES else None


def conflict(
    rule: Rule,
    queues: range,
    owner: Owner,
    shown: Sequence[FindingEvidence],
    context: FindingContext,
    observed: int | None = None,
) -> Finding | None:
    """Makes the finding for a rule; None if a process is bound to each of its queues.

    Args:
        rule: A rule without `bypass`.
        queues: Its queues.
        owner: Its owner.
        shown: The evidence for the rule.
        context: The context of the findings.
        observed: The queue of which the kernel said that no process was bound to it when the packet came; None = not seen.
    """
    bound = value_of(context.ask(QUEUES))
    missing = [number for number in queues if bound is None or number not in bound] if observed is None else [observed]
    if not missing:
        return None
    which = f"queue {missing[0]}" if len(missing) == 1 else f"queues {missing[0]} to {missing[-1]}"
    if len(missing) not in (1, missing[-1] - missing[0] + 1):
        which = f"queues {', '.join(map(str, missing[:10]))}"
    part = "packets that match it" if len(missing) == len(queues) else "those of the packets that match it that come to them"
    who = f"A rule of {owner.text}" if owner.known else "A rule of an unknown program"
    at = f"{rule.table}/{rule.chain}"
    verb = "is" if observed is None or observed not in (bound or ()) else "was"
    state = f"no process {verb} bound to {'it' if len(missing) == 1 else 'them'}"
    is_certain = bound is not None or observed is not None
    doubt = "" if is_certain else "perhaps "
    proofs = list(shown)
    if bound is not None:
        text = (
            f"processes are bound to the queues {', '.join(map(str, bound[:20]))}"
            if bound
            else "no process is bound to a queue"
        )
        proofs.append(FindingEvidence("process", text, "/proc/net/netfilter/nfnetlink_queue"))
    return Finding(
        name="",
        key=(rule.family, rule.table, rule.chain, rule.text),
        cause=(
            f"{who} in {at} hands packets to {which} (NFQUEUE, without bypass), and {doubt}{state}: the kernel drops {part}."
        ),
        proofs=tuple(proofs),
        check=(
            f"`cat /proc/net/netfilter/nfnetlink_queue` has a line for each queue with a process, its number first;"
            f" `{operator_commands.shows(rule)}` shows the rule."
        ),
        cure=(
            f"Start the process that reads {which} (an intrusion detection, a CNI plugin), or remove the rule:"
            f" `{operator_commands.deletes(rule)}`. With bypass the rule lets packets pass while no process is bound."
        ),
        certain=is_certain,
    )
