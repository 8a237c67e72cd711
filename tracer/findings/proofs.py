# SPDX-License-Identifier: Apache-2.0
"""Makes the evidence of a finding from packets, rules and decisions."""

from __future__ import annotations

from tracer.kube.policies.policy_candidates import PolicyCandidates
from tracer.model.endpoints import Endpoints
from tracer.model.finding import FindingEvidence
from tracer.model.hop import (
    DecisionDetail,
    IpvsDecision,
    IpvsNatHop,
    IpvsRefusalHop,
    OwnedHop,
    RewriteHop,
    RuleHop,
    alike_of,
    decision_of,
    nat_of,
)
from tracer.model.namespace_name import Netns
from tracer.model.netfilter import Verdict
from tracer.model.packet import Packet
from tracer.model.rule import Rule, RuleHit, format_path
from tracer.packets import queue_details
from tracer.util.endpoint_format import format_endpoint


def packet_proof(packet: Packet) -> FindingEvidence:
    """The evidence of a packet: its addresses and its verdict."""
    ends = packet.endpoints
    return FindingEvidence("packet", f"{ends.src} -> {format_endpoint(ends.dst, ends.dport)}: {packet.verdict}", "observed")


def existing_rule_proof(rule: Rule, source: str, owner: str = "") -> FindingEvidence:
    """The evidence of an existing rule, whether or not a packet met it. source: where the rule was read."""
    text = f"{rule.chain} {rule.number}: {rule.text}"
    return FindingEvidence("rule", text + (f" ({owner})" if owner else ""), source)


def decision_proof(hop: OwnedHop, owner: str = "") -> FindingEvidence:
    """The evidence of the deciding rule or IPVS virtual server. The hop must be of IPVS, or have a decision."""
    if isinstance(hop, (IpvsNatHop, IpvsRefusalHop)):
        return FindingEvidence("server", _server(hop.decision) + (f" ({owner})" if owner else ""), hop.evidence.value)
    decision = decision_of(hop)
    assert decision
    return rule_proof(decision, owner)


def _server(decision: IpvsDecision) -> str:
    to = format_endpoint(decision.real, decision.real_port) if decision.real else "has no real server"
    virtual = format_endpoint(decision.virtual, decision.virtual_port)
    return f"IPVS virtual server {decision.protocol} {virtual}{' -> ' if decision.real else ' '}{to}"


def rule_proof(hit: RuleHit, owner: str = "") -> FindingEvidence:
    """The evidence of a rule that acted, with its path and its owner."""
    text = hit.rule.text if hit.rule else f"policy {hit.verdict}"
    element = f" [element {hit.element}]" if hit.element else ""
    hotdrop = f" [{hit.hotdrop}]" if hit.hotdrop else ""
    text_and_path = f"{format_path(hit.path)}: {text}{element}{hotdrop}" + (f" ({owner})" if owner else "")
    return FindingEvidence("rule", text_and_path, hit.evidence.value)


def rewriting_rule(packet: Packet, rewrite: RewriteHop, targets: frozenset[str]) -> RuleHit | None:
    """The rule that decided a rewrite: its own decision, or that of the same hook's rules; None = it is not known.

    targets: targets in upper case that make such a rewrite.
    """
    for hop in (rewrite, *alike_of(packet.hops, RuleHop)):
        hit = decision_of(hop)
        is_same = (hop.hook, hop.netns) == (rewrite.hook, rewrite.netns)
        if is_same and hit and hit.rule and (hop is rewrite or {hit.verdict, hit.rule.target.upper()} & targets):
            return hit
    return None


def queueing_rule(packet: Packet, netns: Netns) -> tuple[RuleHop, RuleHit, Rule] | None:
    """The last rule of a network namespace that handed the packet to a queue (NFQUEUE), with its hop; None = not known."""
    for hop in reversed(alike_of(packet.hops, RuleHop)):
        hit = decision_of(hop)
        if hop.netns == netns and hop.verdict is Verdict.QUEUE and hit and hit.rule:
            return hop, hit, hit.rule
    return None


def queue_proof(detail: DecisionDetail | None) -> list[FindingEvidence]:
    """The evidence of what a queue did with the packet; none if it was not seen."""
    if not detail:
        return []
    return [
        FindingEvidence("process", f"{queue_details.format_queue(detail)}: {queue_details.format_detail(detail)}", "observed")
    ]


def last_ends(packet: Packet) -> Endpoints:
    """The packet's addresses and ports after all translations that were seen."""
    translations = (nat_of(hop) for hop in packet.hops if not hop.clone)
    return next((nat.after for nat in reversed([nat for nat in translations if nat])), packet.endpoints)


def check_of_policies(namespace: str) -> str:
    """Formats how the policies of a namespace are shown."""
    return f"`kubectl get networkpolicies -n {namespace} -o yaml` shows the policies."


def policy_proofs(policies: PolicyCandidates | None) -> list[FindingEvidence]:
    """The evidence of policies that may have decided: what each one says of the packet."""
    return [FindingEvidence("object", text, "Kubernetes API") for text in policies.single_clauses] if policies else []


def check_of_candidates(policies: PolicyCandidates | None) -> str:
    """Formats how policies that may have decided are shown; "" = there are none."""
    return check_of_policies(policies.namespace) if policies and policies.namespace else ""
