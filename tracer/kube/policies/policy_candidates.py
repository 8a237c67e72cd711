# SPDX-License-Identifier: Apache-2.0
"""Policies that may have decided about a packet where the decision itself is not seen: in Open vSwitch, in an eBPF program.

The objects show which NetworkPolicies select the packet's pods, and what these policies say. They do not show what the other
program decided: it may be behind the objects, or carry out policies of another API. So they are candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracer.kube.catalog import ClusterView
from tracer.kube.policies.evaluation import DirectionAnswer, end_at, evaluate
from tracer.kube.policies.policy_words import reason
from tracer.model.endpoints import Endpoints
from tracer.model.policy import EGRESS, INGRESS

PROTOCOLS = ("tcp", "udp", "sctp")
"""Protocols that policies speak of."""
MOST_NAMED = 8
"""Policies that are named."""


def candidates(ends: Endpoints, protocol: str, cluster: ClusterView) -> tuple[DirectionAnswer, ...]:
    """Evaluates the NetworkPolicies of the API for a packet: egress of the pod that sends it, ingress of the one it is for.

    Args:
        ends: The packet's addresses and ports, at the place where it was decided about.
        protocol: Its protocol, in lower case.
        cluster: The objects.

    Returns:
        An answer for each end that is a pod with known labels.
    """
    found = []
    for direction, address in ((EGRESS, ends.src), (INGRESS, ends.dst)):
        pod = end_at(address, cluster).pod
        if pod:
            found.append(evaluate(direction, pod, ends.src, ends.dst, protocol, ends.dport, cluster))
    return tuple(found)


def in_one_clause(answers: Sequence[DirectionAnswer], protocol: str) -> str:
    """Formats the candidates as a clause, with what they say of the packet."""
    limits = [(answer, each.policy) for answer in answers if not answer.exempt for each in answer.policies]
    if not answers:
        return "which NetworkPolicies select its pods is not known"
    if not limits:
        return "no NetworkPolicy of the API limits the pods that are known"
    names = [f"{p.namespace}/{p.name} ({a.direction} of {a.pod.name})" for a, p in limits]
    listed = ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
    many = len(names) > 1
    text = f"candidate{'s' * many} {'are' if many else 'is'} NetworkPolic{'ies' if many else 'y'} {listed}"
    allows = {answer.allows for answer in answers}
    if protocol not in PROTOCOLS or (None in allows and False not in allows):
        return text
    return f"{text}, which by the objects of the API {'do' if many else 'does'}{' not' * (False in allows)} allow it"


def in_single_clauses(answers: Sequence[DirectionAnswer], protocol: str, port: int) -> list[str]:
    """Formats what each candidate says of the packet, at most MOST_NAMED."""
    limits = [(answer, each) for answer in answers if not answer.exempt for each in answer.policies]
    texts = []
    for answer, each in limits[:MOST_NAMED]:
        name = f"NetworkPolicy {each.policy.namespace}/{each.policy.name}, {answer.direction} of pod {answer.pod.name}"
        texts.append(f"{name}: {reason(each, answer, protocol, port)}" if protocol in PROTOCOLS else name)
    return texts
