# SPDX-License-Identifier: Apache-2.0
"""The one hop that decided about a packet, and its rule, for outputs with one line or one row for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracer.model.bpf_program import ProgramAction
from tracer.model.evidence import Evidence
from tracer.model.hop import Hop, RewriteHop, RuleHop, trace_of, verdict_of
from tracer.model.kube import UNKNOWN, Owner
from tracer.model.netfilter import REFUSALS
from tracer.model.packet import Outcome, Packet
from tracer.packets.outcome import BAD


class DecidingRule(NamedTuple):
    """The rule of a deciding hop.

    Attributes:
        table: Its table; "" = not known.
        place: Its chain and number, "KUBE-FIREWALL 2" or "FORWARD policy", and " (derived)" if it was not observed.
    """

    table: str
    place: str


def deciding_rule(hop: Hop) -> DecidingRule | None:
    """The rule of a deciding hop; None = it is not known."""
    trace = trace_of(hop)
    if trace is None or trace.decision is None:
        return None
    decision, at = trace.decision, trace.decision.location
    table = decision.rule.table if decision.rule else hop.table if isinstance(hop, RuleHop) else ""
    derived = " (derived)" if decision.evidence is Evidence.DERIVED else ""
    return DecidingRule(table, f"{at.chain} {at.number or 'policy'}{derived}")


def deciding_hop(packet: Packet) -> Hop | None:
    """The hop that decided; None = no hop. A copy of the packet decides only if nothing that the packet itself met did."""
    own = [hop for hop in packet.hops if not hop.clone]
    return _decided_in(own, packet.outcome) or _decided_in(packet.hops, packet.outcome)


def deciding_program(packet: Packet) -> ProgramAction | None:
    """What is known of the program that dropped a packet about which no rule decided; None = no program did."""
    drop = packet.drop
    return drop.program if drop and packet.outcome in BAD and deciding_hop(packet) is None else None


def program_owner(found: ProgramAction) -> Owner:
    """The owner of the program that dropped a packet: its loader, unless only its name tells it."""
    program = found.program
    is_known = program is not None and program.loader_evidence in ("pin", "process")
    return Owner("program", program=program.loader) if program and is_known else UNKNOWN


def _decided_in(hops: Sequence[Hop], outcome: Outcome) -> Hop | None:
    """The hop with the refusal; of a packet that was not refused, the rewrite of a Service's address, or another one."""
    if outcome in BAD:
        return next((hop for hop in reversed(hops) if isinstance(hop, RuleHop) and verdict_of(hop) in REFUSALS), None)
    rewrites = [hop for hop in hops if isinstance(hop, RewriteHop)]
    return next((hop for hop in rewrites if "DNAT" in hop.nat.kind), rewrites[0] if rewrites else None)
