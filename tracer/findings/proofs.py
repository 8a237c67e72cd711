# SPDX-License-Identifier: Apache-2.0
"""Evidence of a finding, made from packets, rules and decisions."""

from __future__ import annotations

from tracer.model.finding import FindingEvidence
from tracer.model.packet import Hop, IpvsDecision, Packet
from tracer.model.rule import Rule, RuleHit, format_path
from tracer.util.endpoint_format import format_endpoint


def packet_proof(packet: Packet) -> FindingEvidence:
    """A packet, where it was sent to and how it ended."""
    ends = packet.endpoints
    return FindingEvidence("packet", f"{ends.src} -> {format_endpoint(ends.dst, ends.dport)}: {packet.verdict}", "observed")


def stands(rule: Rule, source: str, whose: str = "") -> FindingEvidence:
    """A rule that is there, whether or not a packet met it. source: who told it."""
    text = f"{rule.chain} {rule.number}: {rule.text}"
    return FindingEvidence("rule", text + (f" ({whose})" if whose else ""), source)


def decision_proof(hop: Hop, whose: str = "") -> FindingEvidence:
    """What decided at a hop: a rule, or a virtual server of IPVS. The hop has a walk with a decision, or ipvs."""
    if hop.ipvs:
        return FindingEvidence("server", _server(hop.ipvs) + (f" ({whose})" if whose else ""), hop.evidence.value)
    assert hop.rule_trace and hop.rule_trace.decision
    return rule_proof(hop.rule_trace.decision, whose)


def _server(told: IpvsDecision) -> str:
    to = format_endpoint(told.real, told.real_port) if told.real else "has no real server"
    virtual = format_endpoint(told.virtual, told.virtual_port)
    return f"IPVS virtual server {told.protocol} {virtual}{' -> ' if told.real else ' '}{to}"


def rule_proof(hit: RuleHit, whose: str = "") -> FindingEvidence:
    """A rule that acted, with the way to it and whose it is."""
    text = hit.rule.text if hit.rule else f"policy {hit.verdict}"
    element = f" [element {hit.element}]" if hit.element else ""
    hotdrop = f" [{hit.hotdrop}]" if hit.hotdrop else ""
    said = f"{format_path(hit.path)}: {text}{element}{hotdrop}" + (f" ({whose})" if whose else "")
    return FindingEvidence("rule", said, hit.evidence.value)
