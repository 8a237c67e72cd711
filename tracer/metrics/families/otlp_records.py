# SPDX-License-Identifier: Apache-2.0
"""What became of spans and log records for a collector."""

from __future__ import annotations

from collections.abc import Iterable

from tracer.metrics.family import Family, MetricDescription, MetricKind, Sample


class OtlpRecords(Family):
    """Counted by the thread that sends them; there are no series without `agent --otlp`."""

    DESCRIPTION = MetricDescription(
        MetricKind.COUNTER,
        "Spans (traces) and findings (logs) that the collector took (exported), that were not sent (shed), or that it refused.",
        labels=("signal", "result"),
    )

    def samples(self) -> Iterable[Sample]:
        return [Sample(labels, count) for labels, count in self._sources.otlp_results().items()]


METRIC = OtlpRecords
