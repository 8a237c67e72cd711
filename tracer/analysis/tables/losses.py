# SPDX-License-Identifier: Apache-2.0
"""The table of lost events."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.analysis.table_schema import BIGINT, VARCHAR, Column, TableSchema
from tracer.analysis.tables import _packet_columns
from tracer.model.loss import LEFT_OUT, Loss


@dataclass(frozen=True, slots=True)
class DatedLoss:
    """A loss. offset: ns to add to CLOCK_MONOTONIC to get ns since the epoch; 0 = not known."""

    loss: Loss
    offset: int = 0

    def time(self, monotonic: int) -> int:
        return monotonic + self.offset if monotonic and self.offset else 0


TABLE: TableSchema[DatedLoss] = TableSchema(
    "One reading of a loss counter that had increased: no packet was seen in full between the two times for certain",
    DatedLoss,
    lambda loss: (loss,),
    (
        *_packet_columns.times(lambda d: d.time(d.loss.since), "Time of the reading before: the loss is later", "since"),
        *_packet_columns.times(lambda d: d.time(d.loss.until), "Time of this reading: the loss is earlier", "until"),
        Column("probe", VARCHAR, f"Probe that lost events; `{LEFT_OUT}`: packets without any recorded event",
               lambda d: d.loss.probe),
        Column("cpu", BIGINT, "CPU; NULL: not counted by CPU", lambda d: None if d.loss.cpu < 0 else d.loss.cpu),
        Column("lost", BIGINT, f"Events; packets where probe is `{LEFT_OUT}`", lambda d: d.loss.count),
        Column("reason", VARCHAR, "Why, as a clause", lambda d: d.loss.why),
    ),
)  # fmt: skip
