# SPDX-License-Identifier: Apache-2.0
"""A rule hands packets to a queue (NFQUEUE), and the process behind it does not let them pass.

kube-network-policies, and kindnet with it, carry out NetworkPolicies in this way. No rule shows what the process decides by, so
the policy is unknown; those that select the pods are candidates.
"""

from __future__ import annotations

import re

from tracer.findings.context import FindingContext
from tracer.findings.proofs import check_of_policies, last_ends, packet_proof, rule_proof
from tracer.kube.owners import kube_network_policies
from tracer.kube.policies.evaluation import end_at
from tracer.kube.policies.policy_candidates import PolicyCandidates, candidates
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import DropHop, RuleHop, alike_of, decision_of
from tracer.model.kube import Owner
from tracer.model.packet import Outcome, Packet
from tracer.model.rule import RuleHit
from tracer.packets.queue_drops import is_queue_drop
from tracer.rules import operator_commands

POLICY_PROGRAMS = frozenset(kube_network_policies.TABLES.values())
"""Programs that carry out NetworkPolicies by a queue."""
_IS_QUEUE = re.compile(r"-j NFQUEUE\b|\bqueue\b")
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')


def find(packet: Packet, context: FindingContext) -> Finding | None:
    drops = alike_of(packet.hops, DropHop) if packet.outcome is Outcome.DROPPED else []
    if not drops or not is_queue_drop(drops[-1].drop):
        return None
    for hop in reversed(alike_of(packet.hops, RuleHop)):
        hit = decision_of(hop)
        if hop.netns == drops[-1].netns and hit and hit.rule:
            is_queue = _IS_QUEUE.search(_QUOTED.sub('""', hit.rule.text))
            return _finding(packet, hit, hop.owner or Owner("unknown"), context) if is_queue else None
    return None


def _finding(packet: Packet, hit: RuleHit, owner: Owner, context: FindingContext) -> Finding | None:
    rule = hit.rule
    if not rule:
        return None
    ends, protocol, cluster = last_ends(packet), packet.protocol.lower(), context.cluster
    source, target = end_at(ends.src, cluster), end_at(ends.dst, cluster)
    what = f"{protocol} {ends.dport}" if ends.dport else protocol
    program = (owner.program or owner.text) if owner.known else "an unknown program"
    cause = (
        f"The process behind a queue (NFQUEUE) does not let {what} from {source.text} to {target.text} pass, or it ended"
        f" meanwhile: a rule of {program} in {rule.table}/{rule.chain} hands the packets to the queue."
    )
    policies = candidates(ends, protocol, cluster) if owner.program in POLICY_PROGRAMS else None
    proofs = [FindingEvidence("object", text, "Kubernetes API") for text in policies.single_clauses] if policies else []
    return Finding(
        name="",
        key=(rule.family, rule.table, rule.chain, ends.src, ends.dst, what),
        cause=f"{cause} {policies.sentence(f'What {owner.program} decides by is not seen')}" if policies else cause,
        proofs=(packet_proof(packet), rule_proof(hit, owner.text), *proofs),
        check=_check(policies, operator_commands.shows(rule)),
        cure=_cure(policies, source.text, target.text, what),
    )


def _check(policies: PolicyCandidates | None, shows: str) -> str:
    text = (
        f"`cat /proc/net/netfilter/nfnetlink_queue` has a line for each queue with a process: its number, and mostly the"
        f" process's pid; `{shows}` shows the rule."
    )
    return f"{text} {check_of_policies(policies.namespace)}" if policies and policies.namespace else text


def _cure(policies: PolicyCandidates | None, source: str, target: str, what: str) -> str:
    if policies:
        return f"If it should be allowed: a NetworkPolicy that allows {source} to reach {target}, {what}."
    return "Look at the log and the rules of the process behind the queue: an intrusion detection, a filter."
