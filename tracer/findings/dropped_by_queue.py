# SPDX-License-Identifier: Apache-2.0
"""A rule hands packets to a queue (NFQUEUE), and the process behind it does not let them pass, or ends while they wait.

kube-network-policies, and kindnet with it, carry out NetworkPolicies in this way. No rule shows what the process decides by, so
the policy is unknown; those that select the pods are candidates. That the process decided is certain where its answer was seen.
Without it (no probe on the queue, captures of earlier versions) the same drop has other causes, too
(tracer/packets/queue_drops.py).
"""

from __future__ import annotations

from tracer.findings.context import FindingContext
from tracer.findings.proofs import (
    check_of_candidates,
    last_ends,
    packet_proof,
    policy_proofs,
    queue_proof,
    queueing_rule,
    rule_proof,
)
from tracer.kube.owners import kube_network_policies
from tracer.kube.policies.evaluation import end_at
from tracer.kube.policies.policy_candidates import candidates
from tracer.model.finding import Finding
from tracer.model.hop import DecisionDetail
from tracer.model.kube import Owner
from tracer.model.packet import Outcome, Packet
from tracer.packets import queue_details
from tracer.packets.queue_details import ENDED, INTERFACE_DOWN, PROCESS, RULES_REMOVED
from tracer.packets.queue_drops import UNKNOWN, drop_of_packet
from tracer.rules import operator_commands
from tracer.util.endpoint_format import format_protocol

POLICY_PROGRAMS = frozenset(kube_network_policies.TABLES.values())
"""Programs that carry out NetworkPolicies by a queue."""
_EMPTIED = {
    ENDED: "the process behind it ended or let go of it",
    INTERFACE_DOWN: "an interface went down",
    RULES_REMOVED: "rules of their hook were removed",
}


def find(packet: Packet, context: FindingContext) -> Finding | None:
    queued = drop_of_packet(packet) if packet.outcome is Outcome.DROPPED else None
    if not queued or queued.cause not in (UNKNOWN, PROCESS, *_EMPTIED):
        return None
    found = queueing_rule(packet, queued.netns)
    if not found:
        return None
    hop, hit, rule = found
    owner = hop.owner or Owner("unknown")
    ends, protocol, cluster = last_ends(packet), packet.protocol.lower(), context.cluster
    source, target = end_at(ends.src, cluster), end_at(ends.dst, cluster)
    what = format_protocol(protocol, ends.dport)
    program = (owner.program or owner.text) if owner.known else "an unknown program"
    handed = f"a rule of {program} in {rule.table}/{rule.chain} hands the packets to the queue"
    way = f"{what} from {source.text} to {target.text}"
    cause = _cause(queued.cause, queued.detail, way, handed)
    policies = (
        candidates(ends, protocol, cluster) if owner.program in POLICY_PROGRAMS and queued.cause not in _EMPTIED else None
    )
    if queued.cause in _EMPTIED:
        cure = (
            "Look why: the log of the process, its restarts. TCP sends again what was dropped; with other protocols it is lost."
        )
    elif policies:
        cause += f" {policies.sentence(f'What {owner.program} decides by is not seen')}"
        cure = f"If it should be allowed: a NetworkPolicy that allows {source.text} to reach {target.text}, {what}."
    else:
        cure = "Look at the log and the rules of the process behind the queue: an intrusion detection, a filter."
    shown = (
        "`cat /proc/net/netfilter/nfnetlink_queue` has a line for each queue with a process: its number, and mostly the"
        f" process's pid; `{operator_commands.shows(rule)}` shows the rule."
    )
    return Finding(
        name="",
        key=(rule.family, rule.table, rule.chain, ends.src, ends.dst, what, queued.cause),
        cause=cause,
        proofs=(packet_proof(packet), rule_proof(hit, owner.text), *queue_proof(queued.detail), *policy_proofs(policies)),
        check=" ".join(filter(None, (shown, check_of_candidates(policies)))),
        cure=cure,
        certain=queued.cause != UNKNOWN,
    )


def _cause(cause: str, detail: DecisionDetail | None, way: str, handed: str) -> str:
    """What happened to the packets. way: which packets. handed: the rule, as a clause."""
    if cause in _EMPTIED and detail:
        queue = f"{queue_details.format_queue(detail)} (NFQUEUE)"
        return f"Packets waited in {queue} when {_EMPTIED[cause]}, and the kernel dropped them, such as {way}: {handed}."
    if cause == PROCESS and detail:
        who = f"The process behind {queue_details.format_queue(detail)} (NFQUEUE), {queue_details.format_process(detail)},"
        return f"{who} does not let {way} pass: {handed}, and the process answers DROP."
    return (
        f"The process behind a queue (NFQUEUE) does not let {way} pass: {handed}. The same is seen when that process ends, or"
        " when a later function of the same hook drops the packet."
    )
