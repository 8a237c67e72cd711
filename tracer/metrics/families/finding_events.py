# SPDX-License-Identifier: Apache-2.0
"""What became of Events about findings."""

from __future__ import annotations

from collections.abc import Iterable

from tracer.metrics.family import Family, MetricDescription, MetricKind, Sample


class FindingEvents(Family):
    """Counted by the thread that sends them; there are no series without `agent --events`."""

    DESCRIPTION = MetricDescription(
        MetricKind.COUNTER,
        "Events about findings that were created or updated in the Kubernetes API, shed (not sent) or refused by it.",
        labels=("result",),
    )

    def samples(self) -> Iterable[Sample]:
        return [Sample((result,), count) for result, count in self._sources.event_results().items()]


METRIC = FindingEvents
