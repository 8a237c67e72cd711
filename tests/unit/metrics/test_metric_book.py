# SPDX-License-Identifier: Apache-2.0
"""All metrics of a run: names, types and labels; the period after which label sets are chosen again; other threads read."""

from __future__ import annotations

import re
import threading
from dataclasses import replace

from tests.support import sample_packets as samples
from tests.support.metric_books import book, values
from tracer.metrics.families import metrics
from tracer.metrics.family import MetricKind
from tracer.metrics.label_sets import PERIOD_NS
from tracer.metrics.metric_book import exposed_name
from tracer.model.finding import Finding
from tracer.model.namespace_name import Netns
from tracer.model.packet import Packet


def test_names_follow_the_conventions() -> None:
    for name, make in metrics():
        description = make.DESCRIPTION
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name) and not name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert not description.unit or name.endswith(f"_{description.unit}"), name
        assert name.endswith("_info") == (description.kind is MetricKind.INFO)
        assert description.text.endswith(".") and all(re.fullmatch(r"[a-z_]+", label) for label in description.labels)
        assert bool(description.bounds) == (description.kind is MetricKind.HISTOGRAM)
        assert list(description.bounds) == sorted(set(description.bounds)), name


def test_the_name_of_a_counter_has_its_suffix() -> None:
    assert exposed_name("batches", MetricKind.COUNTER) == "k8snet_trace_batches_total"
    assert exposed_name("ready", MetricKind.GAUGE) == "k8snet_trace_ready"


def dropped(number: int) -> Packet:
    """A packet that the filter table of a chain of its own dropped."""
    packet = samples.rejected()
    return samples.with_hop(packet, 0, table=f"table {number}")


def test_label_sets_are_chosen_again_after_a_period() -> None:
    metrics = book(label_sets=1)
    metrics.end_batch(1)
    metrics.packet(dropped(0))
    for _ in range(3):
        metrics.packet(dropped(1))
    metrics.end_batch(PERIOD_NS)
    assert sorted(values(metrics, "dropped_packets").values()) == [1, 3]
    metrics.end_batch(PERIOD_NS + 1)
    metrics.packet(dropped(1))
    found = values(metrics, "dropped_packets")
    assert found.pop(("other",) * 5) == 3 and [*found.values()] == [1] and "table 1" in str(found)
    assert values(metrics, "evicted_label_sets") == {("k8snet_trace_dropped_packets_total",): 1}
    assert values(metrics, "evicted_entries")[("label sets of a metric",)] >= 1


def test_each_metric_keeps_its_bound_with_hostile_names() -> None:
    metrics = book(label_sets=5)
    for number in range(50):
        packet = dropped(number)
        metrics.packet(replace(packet, netns=Netns(f"\udcff\x1b{number}")))
        metrics.finding(Finding(f"name \n{number}", (), "", (), "", ""))
    assert all(len(read.samples) <= 200 for read in metrics.read())
    assert len(values(metrics, "dropped_packets")) == len(values(metrics, "findings")) == 6
    assert sum(values(metrics, "dropped_packets").values()) == 50 == sum(values(metrics, "findings").values())


def test_metrics_are_read_while_they_are_written() -> None:
    metrics, is_over, errors = book(label_sets=3), threading.Event(), list[Exception]()

    def read() -> None:
        while not is_over.is_set():
            try:
                assert all(isinstance(each.samples, tuple) for each in metrics.read())
            except Exception as e:
                errors.append(e)

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(3000):
        metrics.packet(dropped(number % 20))
        metrics.end_batch(number * PERIOD_NS // 50 + 1)
    is_over.set()
    thread.join()
    assert not errors and sum(values(metrics, "dropped_packets").values()) <= 3000
    assert values(metrics, "batches") == {(): 3000}
