# SPDX-License-Identifier: Apache-2.0
"""kubelet's rule drops packets to 127.0.0.0/8 from other addresses. With route_localnet on, they would reach local services.

Source: CVE-2020-8558; kubernetes pkg/kubelet/kubelet_network_linux.go.
"""

from __future__ import annotations

from tracer.findings.context import FindingContext
from tracer.findings.proofs import packet_proof, rule_proof
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.hop import RuleHop, decision_of
from tracer.model.netfilter import Verdict
from tracer.model.packet import Packet
from tracer.node.node_questions import Setting
from tracer.util.endpoint_format import format_endpoint
from tracer.util.questions import value_of

SAYS = "block incoming localnet connections"
SETTING = Setting("net/ipv4/conf/all/route_localnet")
ASKS = (SETTING,)


def find(packet: Packet, context: FindingContext) -> Finding | None:
    for hop in packet.hops:
        if not isinstance(hop, RuleHop) or hop.verdict is not Verdict.DROP or hop.clone:
            continue
        hit = decision_of(hop)
        if hit and hit.rule and not hit.hotdrop and hit.rule.comment == SAYS:
            ends = packet.endpoints
            value = value_of(context.ask(SETTING))
            setting_proofs = (
                [FindingEvidence("setting", f"{SETTING.name.replace('/', '.')} = {value}", "/proc/sys")] if value else []
            )
            return Finding(
                name="",
                key=(ends.dst, ends.dport),
                cause=(
                    f"kubelet's firewall drops {ends.src} -> {format_endpoint(ends.dst, ends.dport)}: a loopback address is"
                    " only for packets that start from one, and this packet's connection was not translated to it."
                ),
                proofs=(packet_proof(packet), rule_proof(hit, hop.owner.text if hop.owner else ""), *setting_proofs),
                check=(
                    "Find the sender to 127.0.0.0/8 from another address: a wrong DNAT or route, or an attack by CVE-2020-8558."
                ),
                cure="Send to the node's own address instead, or let the process listen on one.",
            )
    return None
