# SPDX-License-Identifier: Apache-2.0
"""A pod connects to a Service and its packet is translated to the pod itself, with the pod's own address as the source.

kube-proxy masquerades such a packet (KUBE-SEP's first rule, or the set hairpin-connections). If that rule is missing or does
not act, the pod answers to itself and not through the node, so the answer is not translated back.
"""

from __future__ import annotations

from tracer.findings.context import FindingContext
from tracer.findings.proofs import packet_proof, rule_proof
from tracer.model.finding import Finding
from tracer.model.hop import HookHop, RewriteHop, decision_of
from tracer.model.kube import ObjectReference, pod_of_text
from tracer.model.namespace_name import is_host
from tracer.model.netfilter import Hook, Verdict
from tracer.model.packet import Packet
from tracer.model.rule import RuleHit
from tracer.rules import operator_commands
from tracer.util.endpoint_format import format_endpoint


def find(packet: Packet, context: FindingContext) -> Finding | None:
    rewrites = (h for h in packet.hops if isinstance(h, RewriteHop) and not h.clone and is_host(h.netns))
    dnat = next((h for h in rewrites if h.nat.kind == "DNAT"), None)
    # A missing masquerade cannot be concluded from an incomplete packet.
    if not dnat or dnat.nat.after.src != dnat.nat.after.dst or not packet.complete:
        return None
    after = packet.hops[packet.hops.index(dnat) + 1 :]
    if any(isinstance(h, RewriteHop) and h.nat.kind in ("MASQUERADE", "SNAT") and is_host(h.netns) for h in after):
        return None
    hooks = (h for h in after if isinstance(h, HookHop) and is_host(h.netns))
    if not any(h.hook is Hook.POSTROUTING and h.verdict is Verdict.ACCEPT for h in hooks):
        return None
    before, to = dnat.nat.before, dnat.nat.after
    if context.cluster.is_local(to.dst):
        return None
    decision = decision_of(dnat)
    known = context.cluster.leads_to(to.dst)
    pod, (namespace, name) = known or f"The pod at {to.dst}", pod_of_text(known)
    service = f" (Service {dnat.owner.label})" if dnat.owner and dnat.owner.kind == "Service" else ""
    return Finding(
        name="",
        key=(to.dst, before.dst, before.dport),
        cause=(
            f"{pod[0].upper()}{pod[1:]} connects to {format_endpoint(before.dst, before.dport)}{service} and is sent to itself"
            " without masquerade: its packets come back with its own address as the source, so no answer reaches the client."
        ),
        proofs=(packet_proof(packet), *([rule_proof(decision, dnat.owner.text if dnat.owner else "")] if decision else [])),
        check=(
            f"{_endpoint(decision)}a rule before kube-proxy's in POSTROUTING may have ended the chain."
            " The bridge must also send packets back to the port they came from (hairpin mode)."
        ),
        cure=(
            "Restart kube-proxy if its rule is missing; kubelet's --hairpin-mode hairpin-veth or the bridge plugin's"
            " hairpinMode; kube-proxy's masqueradeAll is a workaround."
        ),
        subject=ObjectReference("Pod", namespace, name) if name else None,
    )


def _endpoint(decision: RuleHit | None) -> str:
    """Returns what to check in the endpoint's chain, as a clause; "" if the rule is not known."""
    if not decision or not decision.rule:
        return ""
    return (
        f"`{operator_commands.shows(decision.rule)}` lists the chain of the endpoint: a rule before its DNAT has the pod's"
        " address as the source and marks the packet for masquerade; "
    )
