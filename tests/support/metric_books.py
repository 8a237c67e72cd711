# SPDX-License-Identifier: Apache-2.0
"""Books of metrics for tests, and their samples as a test compares them."""

from __future__ import annotations

from typing import Any

from tracer.metrics.family import HistogramSample
from tracer.metrics.metric_book import MetricBook
from tracer.metrics.metric_sources import MetricSources

Values = dict[tuple[str, ...], float]


def book(label_sets: int = 10, **sources: Any) -> MetricBook:
    """A book of metrics without a run."""
    return MetricBook(MetricSources(label_sets, **sources))


def values(metrics: MetricBook, name: str) -> Values:
    """The values of a counter or a gauge by the values of its labels; of a histogram, the number of its values."""
    (read,) = (each for each in metrics.read() if each.name == f"k8snet_trace_{name}")
    return {s.labels: s.counts[-1] if isinstance(s, HistogramSample) else s.value for s in read.samples}


def histogram(metrics: MetricBook, name: str) -> dict[tuple[str, ...], HistogramSample]:
    """The histograms by the values of their labels."""
    (read,) = (each for each in metrics.read() if each.name == f"k8snet_trace_{name}")
    return {s.labels: s for s in read.samples if isinstance(s, HistogramSample)}
