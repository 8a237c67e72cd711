# SPDX-License-Identifier: Apache-2.0
"""Captures around findings, with --dump."""

from __future__ import annotations

from collections.abc import Iterable

from tracer.metrics.family import Family, MetricDescription, MetricKind, Sample


class FindingCaptures(Family):
    """Counted by the flight recorder; their number is that of the kinds of findings."""

    DESCRIPTION = MetricDescription(
        MetricKind.COUNTER,
        "Findings with --dump, by what became of the capture around them: written, joined (in the capture of another "
        "finding), limited (the finding had one shortly before) or failed.",
        labels=("finding", "result"),
    )

    def samples(self) -> Iterable[Sample]:
        return [Sample(labels, count) for labels, count in sorted(self._sources.captures().items())]


METRIC = FindingCaptures
