# SPDX-License-Identifier: Apache-2.0
"""The table of SYNs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tracer.analysis.packet_attribution import Attribution, attribution_of
from tracer.analysis.table_schema import BIGINT, BOOLEAN, VARCHAR, Column, TableSchema, number, text
from tracer.analysis.tables import _packet_columns
from tracer.model.handshake import ConnectionAttempt, HandshakeVerdict

UNNAMED = "a listener"
"""How ConnectionAttempt.process calls a listener without a process."""


@dataclass(frozen=True, slots=True)
class _Row:
    verdict: HandshakeVerdict
    attempt: ConnectionAttempt
    attribution: Attribution

    @property
    def answer(self) -> str:
        """The first answer; "" = none was seen."""
        answers = {"SYN ACK": self.attempt.synacks, "RST": self.attempt.resets, "ICMP error": self.attempt.errors}
        first = {
            name: min(p.hops[0].time for p in packets if p.hops)
            for name, packets in answers.items()
            if any(p.hops for p in packets)
        }
        return min(first, key=lambda name: first[name]) if first else ""

    @property
    def listener(self) -> str:
        return "" if self.attempt.process == UNNAMED else self.attempt.process


def _rows(verdict: HandshakeVerdict) -> Iterator[_Row]:
    attempt = verdict.attempt
    if attempt:
        attribution = attribution_of(attempt.syn)
        for packet in attempt.synacks[:1]:
            attribution = attribution.completed_by(attribution_of(packet))
        yield _Row(verdict, attempt, attribution)


TABLE: TableSchema[_Row] = TableSchema(
    "One SYN, with its answer and its cause",
    HandshakeVerdict,
    _rows,
    (
        Column("syn", BIGINT, "Number of the SYN, in the order of the verdicts", lambda r: r.verdict.number),
        Column("packet", BIGINT, "`packets.packet`", lambda r: r.attempt.syn.number),
        Column("connection", BIGINT, "`connections.connection`", lambda r: number(r.attempt.syn.connection)),
        *_packet_columns.times(lambda r: r.verdict.time, "Time of the SYN's first hop"),
        Column("netns", VARCHAR, "Network namespace where it was first seen", lambda r: text(r.verdict.netns)),
        *_packet_columns.endpoints(lambda r: r.verdict.asked, "", "as the client sent it"),
        *_packet_columns.endpoints(lambda r: r.verdict.reached, "reached_", "after the last translation"),
        *_packet_columns.attribution(lambda r: r.attribution),
        Column("cause", VARCHAR, "Why it ended as it did, in one or two words (docs/syns.md)",
               lambda r: text(r.verdict.cause.name)),
        Column("cause_text", VARCHAR, "The same as a sentence", lambda r: text(r.verdict.cause.text)),
        Column("cause_evidence", VARCHAR, "`observed` or `derived`: how the cause is known",
               lambda r: r.verdict.cause.evidence.value),
        Column("is_accepted", BOOLEAN, "Whether it reached its destination and was answered",
               lambda r: r.verdict.cause.good),
        Column("answer", VARCHAR, "First answer that was seen: SYN ACK, RST or ICMP error; NULL: none",
               lambda r: text(r.answer)),
        Column("after_ns", BIGINT, "Time from the SYN to this answer", lambda r: number(r.verdict.after), "ns"),
        Column("earlier_syns", BIGINT, "Earlier SYNs of the same connection with the same sequence number",
               lambda r: r.verdict.again),
        Column("snat_clients", BIGINT, "Clients seen with the source address that SNAT gave this one",
               lambda r: number(r.attempt.clients)),
        Column("listener", VARCHAR, "Process of the listener: `nginx (pid 4242)`", lambda r: text(r.listener)),
        Column("listener_netns", VARCHAR, "Network namespace where the handshake ended, without an ACK the SYN's last one",
               lambda r: text(r.attempt.place)),
    ),
)  # fmt: skip
