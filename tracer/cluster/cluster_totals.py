# SPDX-License-Identifier: Apache-2.0
"""Totals of a run on several nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tracer.model.summary import RunSummary


@dataclass
class ClusterTotals:
    """Totals of a run on several nodes.

    Attributes:
        summary: The sum of the nodes' summaries.
        traced: Nodes on which probes were on.
        failed: Nodes that could not be traced or were lost, with the reason.
        wire_bytes: Bytes that came from all nodes.
    """

    summary: RunSummary = field(default_factory=RunSummary)
    traced: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    wire_bytes: int = 0


def add_summary(total: RunSummary, other: RunSummary) -> None:
    """Adds the summary of one node to that of all."""
    for name in ("packets", "incomplete", "events", "lost", "unexplained", "unaddressed", "drops_without_finding"):
        setattr(total, name, getattr(total, name) + getattr(other, name))
    for name in ("outcomes", "causes", "timelines"):
        counts = Counter(getattr(total, name))
        counts.update(getattr(other, name))
        setattr(total, name, dict(counts))
    total.findings += other.findings
    total.differences += other.differences
    total.not_written += other.not_written
