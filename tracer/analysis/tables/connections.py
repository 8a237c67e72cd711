# SPDX-License-Identifier: Apache-2.0
"""The table of connections."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracer.analysis.connection_totals import ConnectionTotals
from tracer.analysis.table_schema import BIGINT, BOOLEAN, VARCHAR, Column, TableSchema, number, text
from tracer.analysis.tables import _packet_columns
from tracer.model.timeline import Timeline


@dataclass(frozen=True, slots=True)
class _Row:
    totals: ConnectionTotals
    timeline: Timeline


def _rows(totals: ConnectionTotals) -> Iterator[_Row]:
    if totals.timeline:
        yield _Row(totals, totals.timeline)


TABLE: TableSchema[_Row] = TableSchema(
    "One connection, or for protocols without connections one flow; packets are joined as `--follow` joins them",
    ConnectionTotals,
    _rows,
    (
        Column("connection", BIGINT, "Number of the connection, in the order of first packets",
               lambda r: r.timeline.number),
        *_packet_columns.times(lambda r: r.totals.first, "Time of its first packet", "started"),
        *_packet_columns.times(lambda r: r.totals.last, "Time of the last hop of its last packet", "ended"),
        Column("duration_ns", BIGINT, "Time between the two", lambda r: r.totals.last - r.totals.first, "ns"),
        Column("netns", VARCHAR, "Network namespace whose conntrack tracks it; NULL: not tracked, joined by addresses",
               lambda r: text(r.timeline.key.netns)),
        Column("ct_zone", BIGINT, "Zone in conntrack",
               lambda r: r.timeline.key.zone if r.timeline.key.is_tracked else None),
        Column("protocol", VARCHAR, "Name of the protocol, or its number", lambda r: text(r.timeline.key.protocol)),
        *_packet_columns.endpoints(lambda r: r.timeline.asked, "", "of its first packet"),
        Column("endpoint_address", VARCHAR, "Address chosen to serve it, after DNAT; `reply_packets` says whether it answered. "
               "NULL: none was chosen",
               lambda r: r.totals.endpoint[0] if r.totals.endpoint else None),
        Column("endpoint_port", BIGINT, "Its port",
               lambda r: number(r.totals.endpoint[1]) if r.totals.endpoint else None),
        *_packet_columns.attribution(lambda r: r.totals.attribution),
        Column("packets", BIGINT, "Packets in both directions: its rows in `packets`", lambda r: r.totals.packets),
        Column("reply_packets", BIGINT, "Packets in the reply direction", lambda r: r.totals.reply_packets),
        Column("length", BIGINT, "Length of all packets from the IP header on", lambda r: r.totals.length, "bytes"),
        Column("dropped", BIGINT, "Packets that were dropped, rejected or refused: its rows in `drops`",
               lambda r: r.totals.dropped),
        Column("retransmitted", BIGINT, "Packets that were sent again", lambda r: r.timeline.retransmitted),
        Column("has_syn", BOOLEAN, "Whether its SYN was seen; False for other protocols than TCP",
               lambda r: r.timeline.whole),
        Column("state", VARCHAR, "open, closed, reset, refused; answered for protocols without an end",
               lambda r: text(r.timeline.state)),
        Column("ended_by", VARCHAR, "Why nothing more was seen of it: `the run ended`, `aged out` (too many connections "
               "were open; later packets begin another row). NULL: it ended itself", lambda r: text(r.timeline.why)),
    ),
)  # fmt: skip
