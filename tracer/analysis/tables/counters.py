# SPDX-License-Identifier: Apache-2.0
"""The table of kernel counters."""

from __future__ import annotations

from tracer.analysis.tables._column import Column, Table, Type, text
from tracer.model.counter_mismatch import CounterMismatch

TABLE: Table[CounterMismatch] = Table(
    "One kernel counter of one network namespace that changed during the run, or should have changed",
    CounterMismatch,
    lambda counter: (counter,),
    (
        Column("netns", Type.VARCHAR, "Network namespace; `node` is the node's own", lambda c: text(c.netns)),
        Column("counter", Type.VARCHAR, "Name of the counter: ListenDrops, PAWSEstab ...", lambda c: c.counter),
        Column("counted", Type.BIGINT, "Increase of the counter during the run, observed", lambda c: c.counted),
        Column("explained", Type.BIGINT, "Packets of the run that explain an increase, derived", lambda c: c.explained),
        Column("unexplained", Type.BIGINT, "counted - explained; negative: more packets than the kernel counted",
               lambda c: c.counted - c.explained),
    ),
)  # fmt: skip
