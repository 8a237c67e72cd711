# SPDX-License-Identifier: Apache-2.0
"""What decided about a packet: the rule, the policy, the virtual server, the listener or the kernel's function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracer.model.evidence import Evidence
from tracer.model.hop import (
    DropHop,
    HandshakeHop,
    Hop,
    HopBase,
    IpvsHop,
    IpvsNatHop,
    IpvsRefusalHop,
    NatHop,
    RuleHop,
    decision_of,
    nat_of,
)
from tracer.model.netfilter import REFUSALS
from tracer.model.packet import Outcome, Packet
from tracer.model.rule import RuleHit
from tracer.util.endpoint_format import format_endpoint

ENDS = frozenset({Outcome.DROPPED, Outcome.REJECTED, Outcome.REFUSED})
"""Outcomes of a packet that was dropped, with or without an answer to its sender."""
_DNAT = frozenset({"DNAT", "REDIRECT"})


@dataclass(frozen=True, slots=True)
class Decision:
    """What decided.

    Attributes:
        by: "rule", "policy", "table" (a rule or the policy, which one is not known), "hotdrop" (a match of the rule found the
            packet malformed; the rule's target did not act), "ipvs", "listener", "program" (eBPF) or "kernel".
        hop: The hop where it did.
        name: Its name: "ip filter KUBE-FIREWALL 1", "IPVS 10.96.0.10:80", "tcp_v4_rcv"; "" = not known.
        hit: The rule or the policy; None = none, or it is not known.
        evidence: How it is known.
    """

    by: str
    hop: HopBase
    name: str = ""
    hit: RuleHit | None = None
    evidence: Evidence = Evidence.OBSERVED


def decision(packet: Packet) -> Decision | None:
    """What decided the packet's end; of a packet that was not dropped, what decided its destination. None = nothing known."""
    return drop_decision(packet) if packet.outcome in ENDS else _destination_decision(packet)


def drop_decision(packet: Packet) -> Decision | None:
    """What dropped a packet whose outcome is one of ENDS, in the order of tracer/packets/outcome.py."""
    hops = [h for h in packet.hops if not h.clone] or packet.hops
    for hop in hops:
        if isinstance(hop, IpvsRefusalHop) and hop.verdict:
            return _ipvs(hop)
    refusals = [h for h in hops if isinstance(h, RuleHop) and h.verdict in REFUSALS]
    if refusals:
        return rule_decision(packet, refusals[0])
    for hop in hops:
        if isinstance(hop, HandshakeHop) and hop.handshake.accepted is False and hop.handshake.stage != "request":
            return Decision(
                "listener", hop, "accept queue" if hop.handshake.accept_queue_full else "listener", None, hop.evidence
            )
    drop = next((h for h in reversed(hops) if isinstance(h, DropHop)), None)
    if drop and drop.drop.program and (program := drop.drop.program.program):
        return Decision("program", drop, f"{drop.drop.program.place} {program.text}", None, Evidence.DERIVED)
    return Decision("kernel", drop, drop.drop.function, None, drop.evidence) if drop else None


def rule_decision(packet: Packet, hop: RuleHop | NatHop) -> Decision:
    """What decided at a hop where rules were run."""
    hit = decision_of(hop)
    if not hit:
        return Decision("table", hop, hop.place if isinstance(hop, RuleHop) else "", None, hop.evidence)
    by = "hotdrop" if hit.hotdrop else "rule" if hit.rule else "policy"
    return Decision(by, hop, rule_name(packet, hop, hit), hit, hit.evidence)


def rule_name(packet: Packet, hop: HopBase, hit: RuleHit) -> str:
    """Family, table, chain and number of a rule: "ip filter KUBE-FIREWALL 1"; a policy has no number."""
    family, table = table_of(packet, hop, hit)
    return " ".join(filter(None, (family, table, hit.location.chain, str(hit.location.number or "policy"))))


def table_of(packet: Packet, hop: HopBase, hit: RuleHit) -> tuple[str, str]:
    """(family, table) of a rule or a policy. Only of a policy the hop says it."""
    if hit.rule and hit.rule.table:
        return hit.rule.family, hit.rule.table
    named = hop.table if isinstance(hop, RuleHop) else ""
    family, _, table = named.rpartition(" ")
    return family or ("ip6" if packet.family == "IPv6" else "ip"), table


def _ipvs(hop: IpvsHop) -> Decision:
    server = hop.decision
    name = f"IPVS {format_endpoint(server.virtual, server.virtual_port)}" if server.virtual else "IPVS"
    return Decision("ipvs", hop, name, None, hop.evidence)


def _destination_decision(packet: Packet) -> Decision | None:
    """What decided the destination: the rule of the last DNAT, or the virtual server."""
    for hop in reversed(packet.hops):
        nat = nat_of(hop)
        if hop.clone or not nat or nat.kind != "DNAT":
            continue
        if isinstance(hop, IpvsNatHop):
            return _ipvs(hop)
        if isinstance(hop, NatHop):
            return rule_decision(packet, hop) if decision_of(hop) else _beside(packet, packet.hops, hop)
    return None


def _beside(packet: Packet, hops: Sequence[Hop], rewrite: NatHop) -> Decision | None:
    """The DNAT rule of the table or chain that ran at the same hook."""
    for hop in hops:
        hit = decision_of(hop)
        if not hit or not isinstance(hop, RuleHop) or (hop.hook, hop.netns, hop.clone) != (rewrite.hook, rewrite.netns, False):
            continue
        if _DNAT & {hit.verdict, hit.rule.target.upper() if hit.rule else ""}:
            return rule_decision(packet, hop)
    return None
