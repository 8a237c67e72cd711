# SPDX-License-Identifier: Apache-2.0
"""Totals of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer.model.counter_mismatch import CounterMismatch
    from tracer.model.finding import Finding


@dataclass
class RunSummary:
    """What a run saw, counted. lost: events; outcomes: packets by outcome. findings: as they stand at the end.

    causes: SYNs by cause. differences: what the kernel counted, and what packets explain of it. timelines: how many there
    were, and how many aged out. unexplained: packets that were seen when the run was made to end. unaddressed: packets that
    were not written, for no event told their addresses.
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
