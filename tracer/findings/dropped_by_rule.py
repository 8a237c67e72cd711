# SPDX-License-Identifier: Apache-2.0
"""A rule of a NetworkPolicy implementation or of the administrator drops packets: which rule, and its owner.

Drops by kube-proxy and kubelet have their own findings, and so have those for which the rule shows the policies.
"""

from __future__ import annotations

from tracer.findings._policy_hits import find_hit
from tracer.findings.context import FindingContext
from tracer.findings.proofs import packet_proof, rule_proof
from tracer.model.finding import Finding
from tracer.model.hop import RuleHop, TableHop, decision_of
from tracer.model.kube import Owner
from tracer.model.netfilter import REFUSALS, Verdict
from tracer.model.packet import Outcome, Packet
from tracer.model.rule import RuleHit
from tracer.rules import operator_commands
from tracer.util.endpoint_format import format_endpoint

POLICIES = frozenset({"Calico", "Cilium", "kube-router", "Antrea", "Weave Net", "Kube-OVN", "Azure NPM"})
"""Programs that implement NetworkPolicies by rules."""
KUBERNETES_OWN = frozenset({"kube-proxy", "kubelet"})


def find(packet: Packet, context: FindingContext) -> Finding | None:
    if packet.outcome not in (Outcome.DROPPED, Outcome.REJECTED):
        return None
    for hop in packet.hops:
        if not isinstance(hop, RuleHop) or hop.verdict not in REFUSALS or hop.clone:
            continue
        hit = decision_of(hop)
        if hit and hit.verdict in REFUSALS and hop.owner and (hop.owner.known or hop.owner.program in POLICIES):
            has_own_finding = hop.owner.program in KUBERNETES_OWN or find_hit(packet, context)
            return None if has_own_finding else _finding(packet, hop, hit, hop.owner)
        if hit and not hit.rule and hit.verdict == Verdict.DROP:
            return _finding(packet, hop, hit, None)
    return None


def _finding(packet: Packet, hop: RuleHop, hit: RuleHit, owner: Owner | None) -> Finding:
    ends, did = packet.endpoints, "refuses" if hop.verdict is Verdict.REJECT else "drops"
    where = f"{hop.table} {hit.location.chain}"
    if not owner:
        who, cure = f"The policy of {where}", "no rule accepted the packet before: add one that does, or change the policy"
    elif owner.program in POLICIES:
        who = f"A rule of {owner.text} (it implements NetworkPolicies)"
        cure = f"a NetworkPolicy that allows {ends.src} to reach {format_endpoint(ends.dst, ends.dport)}"
    else:
        who = f"A rule of {owner.text}"
        cure = "if it should not, remove the rule at its source, because its program restores a rule that is deleted only here"
    target = format_endpoint(ends.dst, ends.dport)
    if hit.rule:
        shown = operator_commands.shows(hit.rule)
        check = f"Rule {hit.location.number} of {where}: `{shown}` shows its counter, which grows with each of these packets."
    else:
        family = "ip6" if ":" in ends.src else "ip"
        shown = operator_commands.shows_policy(family, hop.table, hit.location.chain, legacy=isinstance(hop, TableHop))
        check = f"`{shown}` shows the policy."
    return Finding(
        name="",
        key=(hop.netns, hop.table, hit.location.chain, hit.location.number, ends.dport),
        cause=f"{who} {did} packets from {ends.src} to {target} in {hop.hook}.",
        proofs=(packet_proof(packet), rule_proof(hit, owner.text if owner else "")),
        check=check,
        cure=f"{cure[0].upper()}{cure[1:]}.",
        subject=owner.reference if owner else None,
    )
