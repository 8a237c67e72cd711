# SPDX-License-Identifier: Apache-2.0
"""The table of rules that acted on packets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracer.analysis.packet_decision import Decision, rule_name
from tracer.analysis.table_schema import BIGINT, BOOLEAN, VARCHAR, Column, TableSchema, text
from tracer.analysis.tables import _packet_columns
from tracer.model.hop import NatHop, RuleHop, is_from_conntrack
from tracer.model.packet import Packet
from tracer.model.rule import RuleHit


@dataclass(frozen=True, slots=True)
class _Row:
    packet: Packet
    hop_index: int
    index: int
    hop: RuleHop | NatHop
    hit: RuleHit

    @property
    def is_deciding(self) -> bool:
        trace = self.hop.rule_trace
        return trace is not None and trace.decision is self.hit

    @property
    def decision(self) -> Decision:
        return Decision("rule" if self.hit.rule else "policy", self.hop, "", self.hit, self.hit.evidence)

    @property
    def owner(self) -> tuple[str, str]:
        """(phrase, kind) of the owner; "" = not known. Only of the deciding rule the hop has it."""
        owner = self.hop.owner if self.is_deciding else None
        return (owner.text, owner.kind) if owner and owner.known else ("", "")


def _rows(packet: Packet) -> Iterator[_Row]:
    for hop_index, hop in enumerate(packet.hops):
        if isinstance(hop, RuleHop | NatHop) and hop.rule_trace:
            for index, hit in enumerate(hop.rule_trace.hits):
                yield _Row(packet, hop_index, index, hop, hit)


TABLE: TableSchema[_Row] = TableSchema(
    "One rule, or a chain's policy, that acted on a packet",
    Packet,
    _rows,
    (
        Column("packet", BIGINT, "`packets.packet`", lambda r: r.packet.number),
        Column("hop", BIGINT, "`hops.hop`", lambda r: r.hop_index),
        Column("hit", BIGINT, "Number of the rule among those that acted at this hop, from 0", lambda r: r.index),
        Column("netns", VARCHAR, "Network namespace of the rules", lambda r: text(r.hop.netns)),
        Column("hook", VARCHAR, "Netfilter hook", lambda r: text(r.hop.hook)),
        Column("rule", VARCHAR, "Family, table, chain and number: `ip filter KUBE-FIREWALL 1`",
               lambda r: text(rule_name(r.packet, r.hop, r.hit))),
        *_packet_columns.deciding_rule(lambda r: r.packet, lambda r: r.decision),
        Column("is_policy", BOOLEAN, "Whether it is a chain's policy and no rule", lambda r: r.hit.rule is None),
        Column("verdict", VARCHAR, "What it did: DNAT, MARK, ACCEPT, RETURN, DROP ...", lambda r: text(r.hit.verdict)),
        Column("is_deciding", BOOLEAN, "Whether it decided the verdict of the table or chain", lambda r: r.is_deciding),
        Column("is_from_conntrack", BOOLEAN, "Whether it acted on an earlier packet of the connection, and conntrack "
               "repeats the translation", lambda r: is_from_conntrack(r.hop)),
        Column("map_element", VARCHAR, "nftables: the map element that chose the verdict", lambda r: text(r.hit.element)),
        Column("hotdrop", VARCHAR, "Why a match of the rule dropped the packet; its target did not act then",
               lambda r: text(r.hit.hotdrop)),
        Column("owner", VARCHAR, "Owner of the rule, as a phrase for a reader; of the deciding rule only",
               lambda r: text(r.owner[0])),
        Column("owner_kind", VARCHAR, "Its kind: Service, Pod, Node, program, administrator", lambda r: text(r.owner[1])),
    ),
)  # fmt: skip
