# SPDX-License-Identifier: Apache-2.0
"""Evidence of a finding, made from packets, rules and decisions."""

from __future__ import annotations

from tracer.model.finding import FindingEvidence
from tracer.model.packet import Hop, IpvsDecision, Packet
from tracer.model.rule import Rule, RuleHit, path
from tracer.util.addresses import place


def packet_proof(packet: Packet) -> FindingEvidence:
    """A packet, where it was sent to and how it ended."""
    ends = packet.endpoints
    return FindingEvidence("packet", f"{ends.src} -> {place(ends.dst, ends.dport)}: {packet.verdict}", "observed")


def stands(rule: Rule, source: str, whose: str = "") -> FindingEvidence:
    """A rule that is there, whether or not a packet met it. source: who told it."""
    text = f"{rule.chain} {rule.number}: {rule.text}"
    return FindingEvidence("rule", text + (f" ({whose})" if whose else ""), source)


def decision_proof(hop: Hop, whose: str = "") -> FindingEvidence:
    """What decided at a hop: a rule, or a virtual server of IPVS. The hop has a walk with a decision, or ipvs."""
    if hop.ipvs:
        return FindingEvidence("server", _server(hop.ipvs) + (f" ({whose})" if whose else ""), hop.evidence.value)
    assert hop.walk and hop.walk.decision
    return rule_proof(hop.walk.decision, whose)


def _server(told: IpvsDecision) -> str:
    to = place(told.real, told.real_port) if told.real else "has no real server"
    return f"IPVS virtual server {told.protocol} {place(told.virtual, told.virtual_port)}{' -> ' if told.real else ' '}{to}"


def rule_proof(visit: RuleHit, whose: str = "") -> FindingEvidence:
    """A rule that acted, with the way to it and whose it is."""
    text = visit.rule.text if visit.rule else f"policy {visit.verdict}"
    element = f" [element {visit.element}]" if visit.element else ""
    hotdrop = f" [{visit.hotdrop}]" if visit.hotdrop else ""
    said = f"{path(visit.path)}: {text}{element}{hotdrop}" + (f" ({whose})" if whose else "")
    return FindingEvidence("rule", said, visit.evidence.value)
