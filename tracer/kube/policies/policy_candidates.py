# SPDX-License-Identifier: Apache-2.0
"""Policies that may have decided about a packet where the decision itself is not seen: in Open vSwitch, in an eBPF program.

The objects show which NetworkPolicies select the packet's pods, and what these policies say. They do not show what the other
program decided: it may be behind the objects, or carry out policies of another API. So they are candidates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracer.kube.catalog import ClusterView
from tracer.kube.policies.evaluation import DirectionAnswer, PolicyAnswer, end_at, evaluate
from tracer.kube.policies.policy_words import reason
from tracer.model.bpf_program import AttachedProgram
from tracer.model.endpoints import Endpoints
from tracer.model.policy import EGRESS, INGRESS

PROTOCOLS = ("tcp", "udp", "sctp")
"""Protocols that policies speak of."""
MOST_NAMED = 8
"""Policies that are named."""
OPEN_VSWITCH = "The flows of Open vSwitch are not seen"
"""Why the decision of Open vSwitch is not known, as the beginning of a sentence."""


@dataclass(frozen=True)
class PolicyCandidates:
    """The NetworkPolicies of the API that select the pods of a packet.

    Attributes:
        answers: What they say, for each end that is a pod with known labels.
        protocol: The packet's protocol, in lower case.
        port: Its destination port.
    """

    answers: tuple[DirectionAnswer, ...]
    protocol: str
    port: int

    @property
    def namespace(self) -> str:
        """The namespace of the first policy; "" = there is none."""
        return next((each.policy.namespace for _, each in self._limits()), "")

    @property
    def clause(self) -> str:
        """The candidates, and what they say of the packet."""
        names = [f"{each.policy.namespace}/{each.policy.name} ({of.direction} of {of.pod.name})" for of, each in self._limits()]
        if not self.answers:
            return "which NetworkPolicies select its pods is not known"
        if not names:
            return "no NetworkPolicy of the API limits the pods that are known"
        listed = ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
        many = len(names) > 1
        text = f"candidate{'s' * many} {'are' if many else 'is'} NetworkPolic{'ies' if many else 'y'} {listed}"
        allows = {answer.allows for answer in self.answers}
        if self.protocol not in PROTOCOLS or (None in allows and False not in allows):
            return text
        says = ("do not allow" if many else "does not allow") if False in allows else "allow" if many else "allows"
        return f"{text}, which by the objects of the API {says} it"

    @property
    def single_clauses(self) -> tuple[str, ...]:
        """What each candidate says of the packet, at most MOST_NAMED."""
        texts = []
        for of, each in list(self._limits())[:MOST_NAMED]:
            name = f"NetworkPolicy {each.policy.namespace}/{each.policy.name}, {of.direction} of pod {of.pod.name}"
            is_said = self.protocol in PROTOCOLS
            texts.append(f"{name}: {reason(each, of, self.protocol, self.port)}" if is_said else name)
        return tuple(texts)

    def sentence(self, why: str) -> str:
        """Says that the policy is unknown. why: why the decision is not seen, as the beginning of a sentence."""
        return f"{why}, so the policy, if one decides, is unknown: {self.clause}."

    def _limits(self) -> Iterator[tuple[DirectionAnswer, PolicyAnswer]]:
        """Yields the policies that limit the pods, with the answer that each belongs to."""
        for answer in self.answers:
            for each in answer.policies if not answer.exempt else ():
                yield answer, each


def candidates(ends: Endpoints, protocol: str, cluster: ClusterView) -> PolicyCandidates:
    """Evaluates the NetworkPolicies of the API for a packet: egress of the pod that sends it, ingress of the one it is for.

    Args:
        ends: The packet's addresses and ports, at the place where it was decided about.
        protocol: Its protocol, in lower case.
        cluster: The objects.
    """
    found = []
    for direction, address in ((EGRESS, ends.src), (INGRESS, ends.dst)):
        pod = end_at(address, cluster).pod
        if pod:
            found.append(evaluate(direction, pod, ends.src, ends.dst, protocol, ends.dport, cluster))
    return PolicyCandidates(tuple(found), protocol, ends.dport)


def own_maps(program: AttachedProgram) -> str:
    """Why the decision of an eBPF program with a loader is not known, as the beginning of a sentence."""
    doubt = f", if the program is {program.loader}'s," if program.loader_evidence == "name" else ""
    return f"What {program.loader} decides{doubt} is in maps of its own, which are not read"
