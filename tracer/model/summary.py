# SPDX-License-Identifier: Apache-2.0
"""Totals of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer.model.counter_mismatch import CounterMismatch
    from tracer.model.finding import Finding


@dataclass(frozen=True)
class OutputLoss:
    """Records that an output could not take.

    Attributes:
        output: The output, as in `-o`: "json:packets.jsonl".
        records: Number of records: packets, findings and other lines.
        why: A clause.
    """

    output: str
    records: int
    why: str


@dataclass
class RunSummary:
    """Totals of a run.

    Attributes:
        packets: Number of packets.
        incomplete: Packets with lost events.
        events: Number of events.
        lost: Lost events.
        outcomes: Packets by outcome.
        seconds: Duration of the run, s.
        findings: The findings at the end of the run.
        drops_without_finding: Dropped packets that no finding explains.
        causes: SYNs by cause.
        differences: Kernel counters that the packets do not explain in full.
        timelines: Number of timelines, and of those that aged out.
        unexplained: Packets that were seen but not explained, because the run was ended.
        joined: Packets that several nodes saw, and that `packets` and `outcomes` count once for each of them.
        unaddressed: Packets that were not written, because no event had their addresses.
        not_written: What outputs could not take, when the run ended.
    """

    packets: int = 0
    incomplete: int = 0
    events: int = 0
    lost: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    causes: dict[str, int] = field(default_factory=dict)
    differences: list[CounterMismatch] = field(default_factory=list)
    timelines: dict[str, int] = field(default_factory=dict)
    unexplained: int = 0
    unaddressed: int = 0
    joined: int = 0
    not_written: list[OutputLoss] = field(default_factory=list)
    drops_without_finding: int = 0
