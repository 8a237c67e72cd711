# SPDX-License-Identifier: Apache-2.0
"""Finds the rule of a program for NetworkPolicies that denied a packet. Shared by the findings about policies."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.findings.context import FindingContext
from tracer.kube.fwmarks import EMPTY
from tracer.kube.owners import denial_of
from tracer.model.endpoints import Endpoints
from tracer.model.hop import RuleHop, decision_of, nat_of
from tracer.model.kube import ObjectReference
from tracer.model.netfilter import REFUSALS
from tracer.model.packet import Outcome, Packet
from tracer.model.policy import EGRESS, INGRESS, PolicyDenial
from tracer.model.rule import RuleHit


@dataclass(frozen=True)
class PolicyHit:
    """The rule that denied a packet.

    Attributes:
        hop: Its hop.
        hit: Its hit.
        denial: What it shows of policies.
        ends: The packet's addresses and ports there, after translations before it.
    """

    hop: RuleHop
    hit: RuleHit
    denial: PolicyDenial
    ends: Endpoints

    @property
    def direction(self) -> str:
        """The direction as the rule shows it, or by the side on which the pod's address is; "" = not known."""
        if self.denial.direction or not self.denial.address:
            return self.denial.direction
        return {self.ends.dst: INGRESS, self.ends.src: EGRESS}.get(self.denial.address, "")

    @property
    def subject(self) -> ObjectReference | None:
        """The pod that the policies select; None = not known."""
        namespace, name = self.denial.pod
        return ObjectReference("Pod", namespace, name) if name else None


def find_hit(packet: Packet, context: FindingContext) -> PolicyHit | None:
    """Returns the rule for policies that denied a packet; None if another rule did, or none."""
    if packet.outcome not in (Outcome.DROPPED, Outcome.REJECTED):
        return None
    ends = packet.endpoints
    for hop in packet.hops:
        nat = nat_of(hop)
        if nat and not hop.clone:
            ends = nat.after
        if not isinstance(hop, RuleHop) or hop.verdict not in REFUSALS or hop.clone:
            continue
        hit = decision_of(hop)
        if not hit or not hit.rule or hit.hotdrop or hit.verdict not in REFUSALS:
            continue
        ruleset = hop.rule_trace.ruleset if hop.rule_trace else None
        denial = denial_of(hit.rule, ruleset or EMPTY, context.cluster)
        return PolicyHit(hop, hit, denial, ends) if denial and denial.policies else None
    return None
