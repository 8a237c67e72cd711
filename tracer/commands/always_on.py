# SPDX-License-Identifier: Apache-2.0
"""The command `agent` without --stdio: counts what fails until SIGTERM, and serves metrics. Imported only when it runs."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from tracer import __version__
from tracer.commands.start_notes import StartNotes
from tracer.metrics.endpoint import MetricsEndpoint, listen_address
from tracer.metrics.health import AgentHealth
from tracer.metrics.metric_book import MetricBook
from tracer.metrics.metric_sources import MetricSources
from tracer.metrics.metrics_output import MetricsOutput
from tracer.node.identity import boot_id, node_name
from tracer.render.base import Output
from tracer.util.optional import require_optional
from tracer.util.status_line import StatusLine

StoreOptions = tuple[str, str, int]
"""URL of the store, directory of the spool and its bound in bytes, as in AgentStore."""
END_SECONDS = 2.0
"""Longest time that packets are explained after SIGTERM, s. With the removal of the probes it is within the grace period."""


@dataclass(frozen=True)
class MoreOutputs:
    """Where an agent brings its results beside its metrics.

    Attributes:
        store: Where they are stored; None = nowhere.
        has_events: Findings become Events of Kubernetes.
        otlp: Base URL of a collector of OpenTelemetry; "" = none.
    """

    store: StoreOptions | None = None
    has_events: bool = False
    otlp: str = ""


def run(address: str, label_sets: int, options: dict[str, Any], more: MoreOutputs = MoreOutputs()) -> int:
    """Traces until SIGTERM, and serves metrics from before its start on. Returns the exit status.

    Args:
        address: Where metrics are served: ADDRESS:PORT.
        label_sets: Largest number of series of a metric, beside `other`.
        options: Those of `trace`.
        more: Where results go, too.

    Raises:
        BadOption: The URL of the collector or the store is none.
        MetricsNotServed: The address cannot be used.
        NoLibrary: A library is missing.
        NoObjects: There is no access to the API, and Events need it.
        OutputNotWritten: The spool of the store cannot be used.
        TraceError: The run is impossible.
    """
    listen = listen_address(address)
    require_optional("prometheus_client", "agent --metrics")
    from tracer.metrics.exposition import Exposition

    health, node = AgentHealth(), node_name()
    sources = MetricSources(label_sets, __version__, os.uname().release, node, lambda: health.is_ready)
    others: list[Output] = []
    if more.has_events:
        output, sources = _events(options, node, sources)
        others.append(output)
    if more.otlp:
        output, sources = _otlp(more.otlp, node, sources)
        others.append(output)
    if more.store:
        from tracer.store.agent_store import AgentStore

        others.append(AgentStore(*more.store).output(node))
    book = MetricBook(sources)
    with MetricsEndpoint(listen, health, Exposition(book).text) as endpoint:
        print(f"Metrics at http://{endpoint.address}/metrics", file=sys.stderr, flush=True)
        has_numbers = bool(more.store or more.otlp)
        return _trace(_joined(MetricsOutput(book, health), others), options | {"numbers_connections": has_numbers})


def _events(options: dict[str, Any], node: str, sources: MetricSources) -> tuple[Output, MetricSources]:
    """The output of Events, and the sources of the metrics with its numbers. Raises NoObjects."""
    from tracer.kube_events.event_counts import EventCounts
    from tracer.kube_events.events_output import EventsOutput, event_access

    counts = EventCounts()
    output = EventsOutput(event_access(options.get("kubeconfig")), node, counts)
    return output, replace(sources, event_results=counts.read)


def _otlp(url: str, node: str, sources: MetricSources) -> tuple[Output, MetricSources]:
    """The output to a collector, and the sources of the metrics with its numbers. Raises BadOption, NoLibrary."""
    require_optional("opentelemetry.exporter.otlp.proto.http", "agent --otlp")
    require_optional("opentelemetry.sdk", "agent --otlp")
    from tracer.otlp.collector_url import collector_url
    from tracer.otlp.otlp_counts import OtlpCounts
    from tracer.otlp.otlp_output import OtlpOutput, TracedMachine
    from tracer.otlp.otlp_sender import OtlpSender

    counts = OtlpCounts()
    machine = TracedMachine(node, os.uname().nodename, boot_id(), __version__)
    return OtlpOutput(OtlpSender(collector_url(url), counts), machine), replace(sources, otlp_results=counts.read)


def _joined(output: MetricsOutput, others: list[Output]) -> Output:
    """The output with the others beside it."""
    if not others:
        return output
    from tracer.pipeline.joint_output import JointOutput

    return JointOutput((output, *others))


def _trace(output: Output, options: dict[str, Any]) -> int:
    """Traces this machine: what fails, and the packets that open connections."""
    with StartNotes(StatusLine(is_wanted=False)) as notes:
        from tracer.commands import trace as tracing

        return tracing.trace(
            (), outputs=(), notes=notes, view=nullcontext(output), end_seconds=END_SECONDS, gives_all_syns=True,
            **options | {"drops_only": True},
        )  # fmt: skip
