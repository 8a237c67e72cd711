# SPDX-License-Identifier: Apache-2.0
"""Policies limit a pod, and none of them allows a packet: which policies, and what each would have needed."""

from __future__ import annotations

from tracer.findings._policy_hits import PolicyHit, find_hit
from tracer.findings.context import FindingContext
from tracer.findings.proofs import check_of_policies, packet_proof, rule_proof
from tracer.kube.policies.applied import list_in_words
from tracer.kube.policies.evaluation import DirectionAnswer, end_at, evaluate
from tracer.kube.policies.policy_words import reason
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.packet import Packet
from tracer.model.policy import EGRESS, INGRESS
from tracer.rules import operator_commands
from tracer.util.endpoint_format import format_protocol

PROTOCOLS = ("tcp", "udp", "sctp")
MOST_PROOFS = 8
"""Policies whose reasons are written out."""


def find(packet: Packet, context: FindingContext) -> Finding | None:
    found = find_hit(packet, context)
    if not found or found.denial.is_rule or not found.hit.rule:
        return None
    answer = _answer(found, packet, context)
    ends, protocol = found.ends, packet.protocol.lower()
    other = end_at(ends.src if found.direction == INGRESS else ends.dst, context.cluster)
    what = format_protocol(protocol, ends.dport)
    route = f"{end_at(ends.src, context.cluster).text} to {end_at(ends.dst, context.cluster).text}"
    pod = "/".join(found.denial.pod) if found.denial.pod[1] else "the pod"
    direction = found.direction or "traffic"
    applied = [p for p in found.denial.policies if found.direction in ("", p.direction) or not p.direction]
    names = list_in_words(tuple(applied)) or "policies"
    cause = f"No policy allows {what} from {route}: the {direction} of {pod} is limited by {names} ({found.denial.program})"
    if answer and answer.allows:
        cause += ". By the objects of the API it is allowed: the rules may be older than the objects"
    side = f"from {other.text}" if found.direction != EGRESS else f"to {other.text}"
    namespace = found.denial.pod[0] or next((c.namespace for p in applied for c in p.candidates), "")
    kubectl = f" {check_of_policies(namespace)}" if namespace else ""
    owner = found.hop.owner.text if found.hop.owner else ""
    return Finding(
        name="",
        key=(found.hop.netns, found.hop.table, found.hit.location.chain, direction, what, "/".join(other.name)),
        cause=f"{cause}.",
        proofs=(packet_proof(packet), rule_proof(found.hit, owner), *_reasons(found, answer, protocol, ends.dport)),
        check=f"`{operator_commands.shows(found.hit.rule)}` shows the rule's counter, which grows.{kubectl}",
        cure=f"If it should be allowed: a NetworkPolicy that selects {pod} and allows {direction} {side}, {what}.",
        subject=found.subject,
    )


def _answer(found: PolicyHit, packet: Packet, context: FindingContext) -> DirectionAnswer | None:
    """Returns what the policies of the API say; None if the pod, the direction or the ports are not known."""
    store, protocol = context.cluster.store, packet.protocol.lower()
    pod = store.pods.one(found.denial.pod)
    if not pod or not found.direction or protocol not in PROTOCOLS or not store.policies_of.all(pod.namespace):
        return None
    ends = found.ends
    return evaluate(found.direction, pod, ends.src, ends.dst, protocol, ends.dport, context.cluster)


def _reasons(found: PolicyHit, answer: DirectionAnswer | None, protocol: str, port: int) -> list[FindingEvidence]:
    """The evidence of what each policy would have needed, and of each policy that the API does not have."""
    proofs = []
    names = {(policy.policy.namespace, policy.policy.name) for policy in answer.policies} if answer else set()
    for policy in answer.policies if answer else ():
        text = f"NetworkPolicy {policy.policy.namespace}/{policy.policy.name}: {reason(policy, answer, protocol, port)}"  # type: ignore[arg-type]
        proofs.append(FindingEvidence("object", text, "Kubernetes API"))
    for applied in found.denial.policies:
        is_asked = "" in (found.direction, applied.direction) or found.direction == applied.direction
        for name in applied.candidates if is_asked else ():
            if (name.namespace, name.name) not in names:
                why = "what it would have needed is not known, because its object was not read"
                proofs.append(FindingEvidence("object", f"{name.text}: {why}", name.evidence))
    return proofs[:MOST_PROOFS]
