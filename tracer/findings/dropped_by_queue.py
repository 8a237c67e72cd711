# SPDX-License-Identifier: Apache-2.0
"""A rule hands packets to a queue (NFQUEUE), and the process behind it does not let them pass.

kube-network-policies, and kindnet with it, carry out NetworkPolicies in this way. No rule shows what the process decides by, so
the policy is unknown; those that select the pods are candidates. That the process decided is not certain, because the kernel
frees other packets in the same place (tracer/packets/queue_drops.py).
"""

from __future__ import annotations

from tracer.findings.context import FindingContext
from tracer.findings.proofs import check_of_candidates, last_ends, packet_proof, policy_proofs, queueing_rule, rule_proof
from tracer.kube.owners import kube_network_policies
from tracer.kube.policies.evaluation import end_at
from tracer.kube.policies.policy_candidates import candidates
from tracer.model.finding import Finding
from tracer.model.hop import DropHop
from tracer.model.kube import Owner
from tracer.model.packet import Outcome, Packet
from tracer.packets.queue_drops import is_behind_queue
from tracer.rules import operator_commands
from tracer.util.endpoint_format import format_protocol

POLICY_PROGRAMS = frozenset(kube_network_policies.TABLES.values())
"""Programs that carry out NetworkPolicies by a queue."""


def find(packet: Packet, context: FindingContext) -> Finding | None:
    hops = [hop for hop in packet.hops if not hop.clone] if packet.outcome is Outcome.DROPPED else []
    drop = next((hop for hop in reversed(hops) if isinstance(hop, DropHop)), None)
    found = queueing_rule(packet, drop.netns) if drop and is_behind_queue(hops, drop) else None
    if not found:
        return None
    hop, hit, rule = found
    owner = hop.owner or Owner("unknown")
    ends, protocol, cluster = last_ends(packet), packet.protocol.lower(), context.cluster
    source, target = end_at(ends.src, cluster), end_at(ends.dst, cluster)
    what = format_protocol(protocol, ends.dport)
    program = (owner.program or owner.text) if owner.known else "an unknown program"
    cause = (
        f"The process behind a queue (NFQUEUE) does not let {what} from {source.text} to {target.text} pass: a rule of"
        f" {program} in {rule.table}/{rule.chain} hands the packets to the queue. The same is seen when that process ends, or"
        " when a later function of the same hook drops the packet."
    )
    policies = candidates(ends, protocol, cluster) if owner.program in POLICY_PROGRAMS else None
    if policies:
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
        key=(rule.family, rule.table, rule.chain, ends.src, ends.dst, what),
        cause=cause,
        proofs=(packet_proof(packet), rule_proof(hit, owner.text), *policy_proofs(policies)),
        check=" ".join(filter(None, (shown, check_of_candidates(policies)))),
        cure=cure,
        certain=False,
    )
