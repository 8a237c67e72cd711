# SPDX-License-Identifier: Apache-2.0
"""The metrics for the library prometheus_client, which writes them as OpenMetrics or as Prometheus' older text.

The only file that imports the library.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tracer.metrics.family import HistogramSample, MetricDescription, MetricKind
from tracer.metrics.metric_book import MetricBook, ReadMetric

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class BookCollector(Collector):
    """Gives the library all metrics of a book, as they are at that moment."""

    def __init__(self, book: MetricBook) -> None:
        self._book = book

    def collect(self) -> Iterator[Metric]:
        return map(_metric, self._book.read())


class Exposition:
    """The metrics of a book, and those of this process (memory, CPU time), as text."""

    def __init__(self, book: MetricBook) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(BookCollector(book))
        ProcessCollector(registry=self._registry)

    def text(self, accept: str) -> tuple[str, bytes]:
        """The type of the content, and the content. accept: the header Accept of the request, which can be any text.

        The library gets one of two texts in its place: it fails with some texts, and returns parts of others.
        """
        encode, content_type = choose_encoder(OPENMETRICS if "application/openmetrics-text" in accept else "")
        return content_type, encode(self._registry)


def _metric(read: ReadMetric) -> Metric:
    description = read.description
    metric = _empty(read.name, description)
    for sample in read.samples:
        if isinstance(sample, HistogramSample):
            assert isinstance(metric, HistogramMetricFamily)
            bounds = [*map(floatToGoString, description.bounds), "+Inf"]
            metric.add_metric(sample.labels, list(zip(bounds, sample.counts, strict=True)), sample.total)
        elif isinstance(metric, InfoMetricFamily):
            metric.add_metric((), dict(zip(description.labels, sample.labels, strict=True)))
        else:
            assert isinstance(metric, CounterMetricFamily | GaugeMetricFamily)
            metric.add_metric(sample.labels, sample.value)
    return metric


def _empty(name: str, description: MetricDescription) -> Metric:
    """A metric without samples."""
    text, labels, unit = description.text, description.labels, description.unit
    match description.kind:
        case MetricKind.COUNTER:
            return CounterMetricFamily(name, text, labels=labels, unit=unit)
        case MetricKind.GAUGE:
            return GaugeMetricFamily(name, text, labels=labels, unit=unit)
        case MetricKind.HISTOGRAM:
            return HistogramMetricFamily(name, text, labels=labels, unit=unit)
        case MetricKind.INFO:
            return InfoMetricFamily(name.removesuffix("_info"), text)
