# SPDX-License-Identifier: Apache-2.0
"""The table of dropped packets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracer.analysis.packet_attribution import Attribution, attribution_of
from tracer.analysis.packet_decision import ENDS, Decision, drop_decision
from tracer.analysis.table_schema import BIGINT, BOOLEAN, VARCHAR, Column, TableSchema, number, text
from tracer.analysis.tables import _packet_columns
from tracer.model.evidence import Evidence
from tracer.model.hop import owner_of
from tracer.model.packet import Outcome, Packet

BY_RULES = "NETFILTER_DROP"
"""The kernel's drop reason for a packet that a rule dropped."""
ACCEPT_QUEUE, NO_SOCKET = "accept queue full", "NO_SOCKET"


@dataclass(frozen=True, slots=True)
class _Row:
    packet: Packet
    attribution: Attribution
    decision: Decision | None

    @property
    def owner(self) -> tuple[str, str]:
        """(phrase, kind) of the owner of what dropped it; "" = not known."""
        owner = owner_of(self.decision.hop) if self.decision else None
        return (owner.text, owner.kind) if owner and owner.known else ("", "")

    @property
    def reason(self) -> tuple[str, str]:
        """(reason, evidence): the kernel's reason, else what the hops show; "" = not known."""
        drop, by = self.packet.drop, self.decision.by if self.decision else ""
        if by == "listener" and self.decision and self.decision.name == "accept queue":
            return ACCEPT_QUEUE, self.decision.evidence.value
        if drop and drop.reason and drop.reason != "NOT_SPECIFIED":
            return drop.reason, Evidence.OBSERVED.value
        if by in ("rule", "policy", "table", "hotdrop", "ipvs"):
            return BY_RULES, Evidence.DERIVED.value
        return (NO_SOCKET, Evidence.DERIVED.value) if self.packet.outcome is Outcome.REFUSED else ("", "")


def _rows(packet: Packet) -> Iterator[_Row]:
    if packet.outcome in ENDS:
        yield _Row(packet, attribution_of(packet), drop_decision(packet))


TABLE: TableSchema[_Row] = TableSchema(
    "One dropped packet: outcome dropped, rejected (a rule or IPVS answered it) or refused (no listener)",
    Packet,
    _rows,
    (
        Column("packet", BIGINT, "`packets.packet`", lambda r: r.packet.number),
        Column("connection", BIGINT, "`connections.connection`", lambda r: number(r.packet.connection)),
        *_packet_columns.times(lambda r: r.packet.time, "Time of the packet's first hop"),
        Column("after_ns", BIGINT, "Time from there to the drop",
               lambda r: r.decision.hop.time - r.packet.hops[0].time if r.decision else None, "ns"),
        Column("netns", VARCHAR, "Network namespace of the drop; `node` is the node's own",
               lambda r: text(r.decision.hop.netns) if r.decision else None),
        Column("hook", VARCHAR, "Netfilter hook; NULL outside of netfilter",
               lambda r: text(r.decision.hop.hook) if r.decision else None),
        Column("protocol", VARCHAR, "Name of the protocol, or its number", lambda r: text(r.packet.protocol)),
        *_packet_columns.endpoints(lambda r: r.packet.endpoints, "", "as the packet came in or was sent"),
        Column("tcp_flags", VARCHAR, "`SYN` and the like", lambda r: text(r.packet.tcp_flags)),
        Column("length", BIGINT, "Length from the IP header on", lambda r: r.packet.length, "bytes"),
        Column("outcome", VARCHAR, "dropped, rejected or refused", lambda r: r.packet.outcome.value),
        Column("verdict", VARCHAR, "The same as a sentence", lambda r: text(r.packet.verdict)),
        Column("reason", VARCHAR, f"The kernel's drop reason; `{ACCEPT_QUEUE}` where the listener's queue shows it. "
               f"A kernel without reasons (before 5.17): `{BY_RULES}` for rules and IPVS, `{NO_SOCKET}` for refused packets",
               lambda r: text(r.reason[0])),
        Column("reason_evidence", VARCHAR, "`observed`: the kernel or a probe gave it; `derived`: from the outcome",
               lambda r: text(r.reason[1])),
        Column("kernel_function", VARCHAR, "The kernel's function that freed it",
               lambda r: text(r.packet.drop.function) if r.packet.drop else None),
        Column("decided_by", VARCHAR, "rule, policy, table (one of its rules, or its policy), hotdrop (a match of the rule "
               "found the packet malformed, and the rule's target did not act), ipvs, listener, program (eBPF), kernel",
               lambda r: r.decision.by if r.decision else None),
        Column("decided_name", VARCHAR, "`packets.decided_by`", lambda r: text(r.decision.name) if r.decision else None),
        *_packet_columns.deciding_rule(lambda r: r.packet, lambda r: r.decision),
        Column("owner", VARCHAR, "Owner of the rule or virtual server, as a phrase for a reader",
               lambda r: text(r.owner[0])),
        Column("owner_kind", VARCHAR, "Its kind: Service, Pod, Node, program, administrator", lambda r: text(r.owner[1])),
        *_packet_columns.attribution(lambda r: r.attribution),
        Column("is_complete", BOOLEAN, "False: some of its events were lost", lambda r: r.packet.complete),
    ),
)  # fmt: skip
