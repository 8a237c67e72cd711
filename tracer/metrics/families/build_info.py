# SPDX-License-Identifier: Apache-2.0
"""What runs here."""

from __future__ import annotations

from collections.abc import Iterable

from tracer.metrics.family import Family, MetricDescription, MetricKind, Sample
from tracer.metrics.label_value import label_value


class BuildInfo(Family):
    """The value is always 1."""

    DESCRIPTION = MetricDescription(
        MetricKind.INFO,
        "Version of the agent, release of the kernel and name of the node.",
        labels=("version", "kernel", "node"),
    )

    def samples(self) -> Iterable[Sample]:
        sources = self._sources
        return [Sample((label_value(sources.version), label_value(sources.kernel), label_value(sources.node)), 1)]


METRIC = BuildInfo
