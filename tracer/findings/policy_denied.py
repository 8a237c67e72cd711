# SPDX-License-Identifier: Apache-2.0
"""A rule of a policy denies a packet. NetworkPolicies of Kubernetes only allow; policies of Calico's and Antrea's own API can
deny, too.
"""

from __future__ import annotations

from tracer.findings._policy_hits import find_hit
from tracer.findings.context import FindingContext
from tracer.findings.proofs import packet_proof, rule_proof
from tracer.kube.policies.applied import list_in_words
from tracer.kube.policies.evaluation import end_at
from tracer.model.finding import Finding
from tracer.model.packet import Packet
from tracer.rules import operator_commands
from tracer.util.endpoint_format import format_protocol


def find(packet: Packet, context: FindingContext) -> Finding | None:
    found = find_hit(packet, context)
    if not found or not found.denial.is_rule or not found.hit.rule:
        return None
    ends, protocol = found.ends, packet.protocol.lower()
    what = format_protocol(protocol, ends.dport)
    route = f"{end_at(ends.src, context.cluster).text} to {end_at(ends.dst, context.cluster).text}"
    owner, location = found.hop.owner.text if found.hop.owner else "", found.hit.location
    name = list_in_words(found.denial.policies)
    return Finding(
        name="",
        key=(found.hop.netns, found.hop.table, location.chain, location.number, what),
        cause=(
            f"A rule of {name} denies {what} from {route}, in its {found.direction}"
            f" ({found.denial.program}, rule {location.number} of {location.chain})."
        ),
        proofs=(packet_proof(packet), rule_proof(found.hit, owner)),
        check=f"`{operator_commands.shows(found.hit.rule)}` shows the rule's counter, which grows with each of these packets.",
        cure=(
            "If it should be allowed: another rule before the one that denies it, or a policy of an earlier tier or a lower"
            " order that allows it."
        ),
        subject=found.subject,
    )
