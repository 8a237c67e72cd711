# SPDX-License-Identifier: Apache-2.0
"""The text that a scraper gets: valid OpenMetrics, and valid text of Prometheus, also with hostile names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_prometheus

from tests.support import sample_packets as samples
from tests.support.metric_books import book
from tests.support.syns import at_listener, last_ack, syn, synack, verdicts
from tracer.kube_events.event_counts import EventCounts
from tracer.metrics.exposition import Exposition
from tracer.metrics.families import metrics
from tracer.metrics.metric_book import MetricBook, exposed_name
from tracer.model.finding import Finding
from tracer.model.kube import Owner

read: Callable[[str], Iterable[Metric]] = read_openmetrics
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def filled() -> MetricBook:
    found = book(
        version="0.1.0",
        kernel="6.12.1",
        node="node-1",
        is_ready=lambda: True,
        event_results=EventCounts().read,
        captures=lambda: {("mtu", "written"): 1},
        otlp_results=lambda: {("traces", "exported"): 3},
    )
    for packet in (samples.rejected(), samples.full_queue(), samples.no_socket()):
        found.packet(packet)
    for verdict in verdicts(syn(*at_listener(True)), synack(), last_ack()):
        found.syn(verdict)
    found.finding(Finding("mtu", (), "", (), "", ""))
    found.end_batch(1)
    return found


@pytest.mark.parametrize(
    ("accept", "read"), [(OPENMETRICS, read_openmetrics), ("text/plain", read_prometheus), ("", read_prometheus)]
)
def test_both_forms_are_valid_and_complete(accept: str, read: Callable[[str], Iterable[Metric]]) -> None:
    content_type, text = Exposition(filled()).text(accept)
    assert ("openmetrics" in content_type) == (accept == OPENMETRICS)
    families = list(read(text.decode()))
    names = {family.name for family in families if family.samples}
    own = {name for name, _ in metrics()} - {"lost_events", "evicted_label_sets", "evicted_entries", "build_info"}
    if accept == OPENMETRICS:
        assert {f"k8snet_trace_{name}" for name in own} - names <= {
            "k8snet_trace_conntrack_entries",
            "k8snet_trace_conntrack_limit_entries",
        }
    assert "process_resident_memory_bytes" in names
    shown = {sample.name for family in families for sample in family.samples}
    for name, make in metrics():
        full = exposed_name(name, make.DESCRIPTION.kind)
        assert name not in own or name.startswith("conntrack") or {full, f"{full}_bucket"} & shown, full


@pytest.mark.parametrize(
    "accept", ["application/openmetrics-text; version=abc", "\xff,;;;", "a" * 60_000, OPENMETRICS + ", */*"]
)
def test_any_header_is_answered(accept: str) -> None:
    content_type, text = Exposition(filled()).text(accept)
    assert content_type.isascii() and len(content_type) < 120 and b"k8snet_trace_ready 1.0" in text


def test_values_and_labels() -> None:
    text = Exposition(filled()).text(OPENMETRICS)[1].decode()
    lines = text.splitlines()
    assert 'k8snet_trace_build_info{kernel="6.12.1",node="node-1",version="0.1.0"} 1.0' in lines
    assert "k8snet_trace_ready 1.0" in lines and "k8snet_trace_batches_total 1.0" in lines
    assert 'k8snet_trace_findings_total{certain="true",finding="mtu"} 1.0' in lines
    assert "# UNIT k8snet_trace_packet_duration_seconds seconds" in lines
    assert 'k8snet_trace_accept_queue_fill_ratio_bucket{le="0.0",netns="pod-a",process="nginx"} 1.0' in lines
    assert 'k8snet_trace_ring_fill_ratio_bucket{le="+Inf"} 1.0' in lines and lines[-1] == "# EOF"


def test_hostile_names_are_escaped() -> None:
    found = book()
    owner = Owner("Service", 'a"\n} evil 1', "\\" * 500 + "\udcff")
    found.packet(samples.with_hop(samples.rejected(), 0, owner=owner))
    found.packet(samples.with_hop(samples.rejected(), 0, owner=replace(owner, name="\x00")))
    text = Exposition(found).text(OPENMETRICS)[1].decode()
    (family,) = (each for each in read(text) if each.name == "k8snet_trace_dropped_packets")
    assert sorted(sample.labels["owner_name"] for sample in family.samples) == sorted(["\\x00", "\\" * 119 + "…"])
    assert {sample.labels["owner_namespace"] for sample in family.samples} == {'a"\\n} evil 1'}
