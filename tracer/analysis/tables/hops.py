# SPDX-License-Identifier: Apache-2.0
"""The table of hops."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracer.analysis.packet_decision import Decision, rule_decision
from tracer.analysis.table_schema import BIGINT, BOOLEAN, VARCHAR, Column, TableSchema, number, text
from tracer.analysis.tables import _packet_columns
from tracer.model.hop import (
    DropHop,
    Hop,
    NatHop,
    RuleHop,
    SocketHop,
    decision_of,
    is_from_conntrack,
    nat_of,
    owner_of,
    trace_of,
    verdict_of,
)
from tracer.model.packet import Packet


@dataclass(frozen=True, slots=True)
class _Row:
    packet: Packet
    index: int
    hop: Hop
    decision: Decision | None

    @property
    def after_ns(self) -> int:
        return self.hop.time - self.packet.hops[0].time

    @property
    def socket(self) -> SocketHop | None:
        return self.hop if isinstance(self.hop, SocketHop) else None


def _rows(packet: Packet) -> Iterator[_Row]:
    for index, hop in enumerate(packet.hops):
        decided = rule_decision(packet, hop) if isinstance(hop, RuleHop | NatHop) and decision_of(hop) else None
        yield _Row(packet, index, hop, decided)


def _owner(row: _Row) -> tuple[str, str]:
    """(phrase, kind) of the owner; "" = not known."""
    owner = owner_of(row.hop)
    return (owner.text, owner.kind) if owner and owner.known else ("", "")


TABLE: TableSchema[_Row] = TableSchema(
    "One hop of a packet: a hook, a table or chain, a translation, a socket, a listener's decision, a drop",
    Packet,
    _rows,
    (
        Column("packet", BIGINT, "`packets.packet`", lambda r: r.packet.number),
        Column("hop", BIGINT, "Number of the hop in its packet, from 0", lambda r: r.index),
        *_packet_columns.times(lambda r: r.packet.time + r.after_ns, "Time of the hop"),
        Column("after_ns", BIGINT, "Time since the packet's first hop", lambda r: r.after_ns, "ns"),
        Column("kind", VARCHAR, "hook, table, chain, nat, nat-hook, ipvs, socket, handshake, clue, drop, redirect",
               lambda r: r.hop.kind.value),
        Column("netns", VARCHAR, "Network namespace; `node` is the node's own", lambda r: text(r.hop.netns)),
        Column("hook", VARCHAR, "Netfilter hook; NULL outside of netfilter", lambda r: text(r.hop.hook)),
        Column("nf_table", VARCHAR, "Table that was run; in nftables with its family, `ip kube-proxy`",
               lambda r: text(r.hop.table) if isinstance(r.hop, RuleHop) else None),
        Column("base_chain", VARCHAR, "Base chain of nftables; NULL with legacy iptables",
               lambda r: text(r.hop.base_chain) if isinstance(r.hop, RuleHop) else None),
        Column("verdict", VARCHAR, "Verdict of the hook, table, chain or listener", lambda r: text(verdict_of(r.hop))),
        Column("evidence", VARCHAR, "`observed`: a probe saw the hop; `derived`: computed",
               lambda r: r.hop.evidence.value),
        Column("in_iface", VARCHAR, "Interface that the packet came in by", lambda r: text(r.hop.in_iface)),
        Column("out_iface", VARCHAR, "Interface that it leaves by", lambda r: text(r.hop.out_iface)),
        Column("mark", BIGINT, "Packet mark", lambda r: r.hop.mark),
        Column("is_copy", BOOLEAN, "Whether the hop belongs to a copy of the packet", lambda r: r.hop.clone),
        Column("nat", VARCHAR, "Kind of the translation: DNAT, SNAT, MASQUERADE, reverse DNAT, reverse SNAT",
               lambda r: text(nat.kind) if (nat := nat_of(r.hop)) else None),
        *_packet_columns.endpoints(lambda r: nat.after if (nat := nat_of(r.hop)) else None, "new_", "after the translation"),
        Column("is_from_conntrack", BOOLEAN, "Whether an earlier packet of the connection decided the translation; "
               "NULL: no translation", lambda r: is_from_conntrack(r.hop) if nat_of(r.hop) else None),
        *_packet_columns.deciding_rule(lambda r: r.packet, lambda r: r.decision)[2:],
        Column("undecided", VARCHAR, "Why the deciding rule is not known; NULL: it is, or no rule was run",
               lambda r: text(trace.undecided) if (trace := trace_of(r.hop)) else None),
        Column("owner", VARCHAR, "Owner of the deciding rule or virtual server, as a phrase for a reader",
               lambda r: text(_owner(r)[0])),
        Column("owner_kind", VARCHAR, "Its kind: Service, Pod, Node, program, administrator",
               lambda r: text(_owner(r)[1])),
        Column("pid", BIGINT, "Process of the socket", lambda r: number(r.socket.socket.pid) if r.socket else None),
        Column("command", VARCHAR, "Name of that process", lambda r: text(r.socket.socket.command) if r.socket else None),
        Column("drop_reason", VARCHAR, "The kernel's drop reason; NULL before Linux 5.17",
               lambda r: text(r.hop.drop.reason) if isinstance(r.hop, DropHop) else None),
        Column("kernel_function", VARCHAR, "The kernel's function that freed the packet",
               lambda r: text(r.hop.drop.function) if isinstance(r.hop, DropHop) else None),
    ),
)  # fmt: skip
