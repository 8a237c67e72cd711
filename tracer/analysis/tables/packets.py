# SPDX-License-Identifier: Apache-2.0
"""The table of packets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracer.analysis.packet_attribution import Attribution, attribution_of
from tracer.analysis.packet_decision import Decision, decision
from tracer.analysis.table_schema import BIGINT, BOOLEAN, VARCHAR, Column, TableSchema, number, text
from tracer.analysis.tables import _packet_columns
from tracer.model.kube import Owner
from tracer.model.packet import Packet


@dataclass(frozen=True, slots=True)
class _Row:
    packet: Packet
    attribution: Attribution
    decision: Decision | None


def _rows(packet: Packet) -> Iterator[_Row]:
    yield _Row(packet, attribution_of(packet), decision(packet))


def _phrase(owner: Owner | None) -> str | None:
    return owner.text if owner and (owner.known or owner.text != "unknown") else None


def _kind(owner: Owner | None) -> str | None:
    return text(owner.kind) if owner and owner.known else None


TABLE: TableSchema[_Row] = TableSchema(
    "One packet: its path through the kernel from the first hop to the last",
    Packet,
    _rows,
    (
        Column("packet", BIGINT, "Number of the packet, in the order in which packets ended", lambda r: r.packet.number),
        Column("connection", BIGINT, "`connections.connection`; NULL for neighbour discovery, and for a packet that "
               "the recorded run did not explain", lambda r: number(r.packet.connection)),
        *_packet_columns.times(lambda r: r.packet.time, "Time of the first hop"),
        Column("netns", VARCHAR, "Network namespace of the first hop; `node` is the node's own",
               lambda r: text(r.packet.netns)),
        Column("iface", VARCHAR, "Network interface of the first hop", lambda r: text(r.packet.iface)),
        Column("family", VARCHAR, "`IPv4` or `IPv6`", lambda r: text(r.packet.family)),
        Column("protocol", VARCHAR, "Name of the protocol, or its number", lambda r: text(r.packet.protocol)),
        *_packet_columns.endpoints(lambda r: r.packet.endpoints, "", "as the packet came in or was sent"),
        Column("tcp_flags", VARCHAR, "`SYN ACK` and the like", lambda r: text(r.packet.tcp_flags)),
        Column("seq", BIGINT, "TCP sequence number", lambda r: r.packet.seq if r.packet.protocol == "TCP" else None),
        Column("icmp_type", BIGINT, "ICMP type", lambda r: r.packet.icmp[0] if r.packet.icmp else None),
        Column("icmp_code", BIGINT, "ICMP code", lambda r: r.packet.icmp[1] if r.packet.icmp else None),
        Column("length", BIGINT, "Length from the IP header on", lambda r: r.packet.length, "bytes"),
        Column("ip_id", BIGINT, "IPv4 identification", lambda r: r.packet.ident if r.packet.family == "IPv4" else None),
        Column("ct_state", VARCHAR, "State in conntrack: NEW, ESTABLISHED, RELATED; INVALID or UNTRACKED without an entry",
               lambda r: text(r.packet.flow.state if r.packet.flow else r.packet.untracked)),
        Column("ct_zone", BIGINT, "Zone in conntrack", lambda r: r.packet.flow.zone if r.packet.flow else None),
        Column("is_reply", BOOLEAN, "Whether conntrack saw it in the reply direction",
               lambda r: r.packet.flow.is_reply if r.packet.flow else None),
        *_packet_columns.endpoints(lambda r: r.packet.flow.orig if r.packet.flow else None, "orig_", "of the original tuple"),
        *_packet_columns.endpoints(lambda r: r.packet.flow.reply if r.packet.flow else None, "reply_", "of the reply tuple"),
        *_packet_columns.attribution(lambda r: r.attribution),
        Column("src_owner", VARCHAR, "Owner of the source address, as a phrase for a reader; derived from addresses",
               lambda r: _phrase(r.packet.src_owner)),
        Column("src_owner_kind", VARCHAR, "Its kind: Service, Pod, Node, external", lambda r: _kind(r.packet.src_owner)),
        Column("dst_owner", VARCHAR, "Owner of the destination address, as a phrase; derived from addresses",
               lambda r: _phrase(r.packet.dst_owner)),
        Column("dst_owner_kind", VARCHAR, "Its kind", lambda r: _kind(r.packet.dst_owner)),
        Column("outcome", VARCHAR, "How it ended: forwarded, sent, delivered, dropped, rejected, refused, stolen, unknown",
               lambda r: r.packet.outcome.value),
        Column("verdict", VARCHAR, "The same as a sentence", lambda r: text(r.packet.verdict)),
        Column("decided_by", VARCHAR, "What dropped it: family, table, chain and number of the rule, `IPVS address:port`, "
               "the listener's queue, the eBPF program, or the kernel's function. For other packets: what decided "
               "their destination (DNAT, IPVS)",
               lambda r: text(r.decision.name) if r.decision else None),
        Column("decided_evidence", VARCHAR, "`observed` or `derived`: how `decided_by` is known",
               lambda r: r.decision.evidence.value if r.decision and r.decision.name else None),
        Column("drop_reason", VARCHAR, "The kernel's drop reason; NULL before Linux 5.17",
               lambda r: text(r.packet.drop.reason) if r.packet.drop else None),
        Column("kernel_function", VARCHAR, "The kernel's function that freed it",
               lambda r: text(r.packet.drop.function) if r.packet.drop else None),
        Column("duration_ns", BIGINT, "Time from the first hop to the last",
               lambda r: r.packet.hops[-1].time - r.packet.hops[0].time if r.packet.hops else None, "ns"),
        Column("is_complete", BOOLEAN, "False: some of its events were lost, so what is absent proves nothing",
               lambda r: r.packet.complete),
        Column("unexplained", VARCHAR, "`observed` or `derived`: the run ended before it explained it. NULL: it did",
               lambda r: r.packet.unexplained.value if r.packet.unexplained else None),
    ),
)  # fmt: skip
