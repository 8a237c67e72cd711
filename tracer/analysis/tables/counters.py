# SPDX-License-Identifier: Apache-2.0
"""The table of kernel counters."""

from __future__ import annotations

from tracer.analysis.table_schema import BIGINT, VARCHAR, Column, TableSchema, text
from tracer.model.counter_mismatch import CounterMismatch

TABLE: TableSchema[CounterMismatch] = TableSchema(
    "One kernel counter of one network namespace that changed during the run, or should have changed",
    CounterMismatch,
    lambda counter: (counter,),
    (
        Column("netns", VARCHAR, "Network namespace; `node` is the node's own", lambda c: text(c.netns)),
        Column("counter", VARCHAR, "Name of the counter: ListenDrops, PAWSEstab ...", lambda c: c.counter),
        Column("counted", BIGINT, "Increase of the counter during the run, observed", lambda c: c.counted),
        Column("explained", BIGINT, "Packets of the run that explain an increase, derived", lambda c: c.explained),
        Column("unexplained", BIGINT, "counted - explained; negative: more packets than the kernel counted",
               lambda c: c.counted - c.explained),
    ),
)  # fmt: skip
