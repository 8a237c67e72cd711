# SPDX-License-Identifier: Apache-2.0
"""The table of findings."""

from __future__ import annotations

from tracer.analysis.table_schema import BIGINT, BOOLEAN, VARCHAR, Column, TableSchema, text
from tracer.analysis.tables import _packet_columns
from tracer.model.finding import Finding

TABLE: TableSchema[Finding] = TableSchema(
    "One thing that is wrong, with one cause (docs/findings)",
    Finding,
    lambda finding: (finding,),
    (
        Column("finding", VARCHAR, "Name of the finding", lambda f: f.name),
        Column("is_certain", BOOLEAN, "Nothing in it is a guess", lambda f: f.certain),
        Column("cause", VARCHAR, "The cause, one sentence", lambda f: text(f.cause)),
        Column("evidence", VARCHAR, "The evidence, a line each, with how it is known",
               lambda f: text("\n".join(f"{p.what}: {p.text} ({p.evidence})" for p in f.proofs))),
        Column("to_check", VARCHAR, "What to look at", lambda f: text(f.check)),
        Column("cure", VARCHAR, "What would mend it", lambda f: text(f.cure)),
        Column("packets", BIGINT, "Packets that show it; 0: found without traffic", lambda f: f.packets),
        Column("packet", BIGINT, "`packets.packet` of the first of them; NULL: found without traffic",
               lambda f: f.numbers[0] if f.packets and f.numbers else None),
        *_packet_columns.times(lambda f: f.first, "Time of the first of them", "first"),
        *_packet_columns.times(lambda f: f.last, "Time of the last of them", "last"),
    ),
)  # fmt: skip
