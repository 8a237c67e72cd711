# SPDX-License-Identifier: Apache-2.0
"""Unexpected errors in threads of the agent."""

from __future__ import annotations

from collections.abc import Iterable

from tracer.metrics.family import Family, MetricDescription, MetricKind, Sample
from tracer.util.worker import user_warnings


class ThreadErrors(Family):
    """Counted by the threads themselves."""

    DESCRIPTION = MetricDescription(
        MetricKind.COUNTER, "Unexpected errors in threads of the agent, after which the thread went on; its log has them."
    )

    def samples(self) -> Iterable[Sample]:
        return [Sample((), user_warnings.failures)]


METRIC = ThreadErrors
