# SPDX-License-Identifier: Apache-2.0
"""Findings, by their name."""

from __future__ import annotations

from tracer.metrics.family import CounterFamily, MetricDescription, MetricKind
from tracer.metrics.label_value import label_value
from tracer.model.finding import Finding


class FindingCount(CounterFamily):
    """Counts each cause once, however many packets show it."""

    DESCRIPTION = MetricDescription(
        MetricKind.COUNTER,
        "Findings, each cause once, by the name of their page in docs/findings.",
        labels=("finding", "certain"),
    )

    def finding(self, finding: Finding) -> None:
        self._add((label_value(finding.name), "true" if finding.certain else "false"))


METRIC = FindingCount
