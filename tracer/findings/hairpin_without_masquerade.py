# SPDX-License-Identifier: Apache-2.0
"""A pod asks a Service and is sent to itself, with its own address as the source: it takes its own packet for a stranger's.

kube-proxy masquerades such a packet (KUBE-SEP's first rule, or the set hairpin-connections); where that rule is missing or does
not act, the pod would answer to itself and not through the node, and nothing is translated back.
"""

from __future__ import annotations

from tracer.findings.context import FindingContext
from tracer.findings.proofs import packet_proof, rule_proof
from tracer.model.finding import Finding
from tracer.model.packet import Packet
from tracer.model.rule import RuleHit
from tracer.rules import operator_commands
from tracer.util.endpoint_format import format_endpoint


def find(packet: Packet, context: FindingContext) -> Finding | None:
    dnat = next((h for h in packet.hops if h.nat and h.nat.kind == "DNAT" and not h.clone and h.netns == "node"), None)
    # That nobody masqueraded it is an absence: of a packet that lost a part nothing is concluded.
    if not dnat or not dnat.nat or dnat.nat.after.src != dnat.nat.after.dst or not packet.complete:
        return None
    after = packet.hops[packet.hops.index(dnat) + 1 :]
    if any(h.nat and h.nat.kind in ("MASQUERADE", "SNAT") and h.netns == "node" for h in after):
        return None
    if not any(h.what == "hook" and h.hook == "POSTROUTING" and h.verdict == "ACCEPT" and h.netns == "node" for h in after):
        return None
    before, to = dnat.nat.before, dnat.nat.after
    if context.cluster.is_local(to.dst):
        return None
    decision = dnat.rule_trace.decision if dnat.rule_trace else None
    pod = context.cluster.leads_to(to.dst) or f"The pod at {to.dst}"
    service = f" (Service {dnat.owner.label})" if dnat.owner and dnat.owner.kind == "Service" else ""
    return Finding(
        name="",
        key=(to.dst, before.dst, before.dport),
        cause=(
            f"{pod[0].upper()}{pod[1:]} asks {format_endpoint(before.dst, before.dport)}{service} and is sent to itself without"
            " masquerade: what it gets has its own address as the source, so no answer comes back."
        ),
        proofs=(packet_proof(packet), *([rule_proof(decision, dnat.owner.text if dnat.owner else "")] if decision else [])),
        check=(
            f"{_endpoint(decision)}a rule before kube-proxy's in POSTROUTING may have ended the chain."
            " The bridge must send back to the same port too (hairpin mode)."
        ),
        cure=(
            "Restart kube-proxy if its rule is missing; kubelet's --hairpin-mode hairpin-veth or the bridge plugin's"
            " hairpinMode; masqueradeAll is a way round."
        ),
    )


def _endpoint(decision: RuleHit | None) -> str:
    """What to look at in the chain of the endpoint, a clause; "" where its rule is not known."""
    if not decision or not decision.rule:
        return ""
    return (
        f"`{operator_commands.shows(decision.rule)}` lists the chain of the endpoint: a rule before its DNAT has the pod's"
        " address as the source and marks the packet for masquerade; "
    )
