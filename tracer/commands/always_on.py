# SPDX-License-Identifier: Apache-2.0
"""The command `agent` without --stdio: counts what fails until SIGTERM, and serves metrics. Imported only when it runs.

It keeps within a budget, and writes captures around findings, if it is asked to: docs/agent.md.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracer import __version__
from tracer.commands.start_notes import StartNotes
from tracer.metrics.endpoint import MetricsEndpoint, listen_address
from tracer.metrics.health import AgentHealth
from tracer.metrics.metric_book import MetricBook
from tracer.metrics.metric_sources import MetricSources
from tracer.metrics.metrics_output import MetricsOutput
from tracer.node.identity import boot_id, node_name
from tracer.pipeline.reader_budget import BudgetLimits
from tracer.render.base import Output
from tracer.util.optional import require_optional
from tracer.util.status_line import StatusLine

if TYPE_CHECKING:
    from tracer.capture.record.flight_recorder import FlightRecorder

StoreOptions = tuple[str, str, int]
"""URL of the store, directory of the spool and its bound in bytes, as in AgentStore."""
END_SECONDS = 2.0
"""Longest time that packets are explained after SIGTERM, s. With the removal of the probes it is within the grace period."""


@dataclass(frozen=True)
class AgentOptions:
    """What an agent does beside serving metrics.

    Attributes:
        label_sets: Largest number of series of a metric, beside `other`.
        store: Where results are stored, too; None = nowhere.
        has_events: Findings become Events of Kubernetes.
        otlp: Base URL of a collector of OpenTelemetry; "" = none.
        budget: What it may use; None = no limit.
        dump: Directory of captures around findings; "" = none are written.
        ring: Length of the events that are kept for them, bytes; 0 = the default.
    """

    label_sets: int
    store: StoreOptions | None = None
    has_events: bool = False
    otlp: str = ""
    budget: BudgetLimits | None = None
    dump: str = ""
    ring: int = 0


def run(address: str, own: AgentOptions, options: dict[str, Any]) -> int:
    """Traces until SIGTERM, and serves metrics from before its start on. Returns the exit status.

    Args:
        address: Where metrics are served: ADDRESS:PORT.
        own: What it does beside that.
        options: Those of `trace`.

    Raises:
        BadOption: The URL of the collector or the store is none.
        MetricsNotServed: The address cannot be used.
        NoLibrary: A library is missing.
        NoObjects: There is no access to the API, and Events need it.
        OutputNotWritten: The spool of the store, or the directory of captures, cannot be used.
        TraceError: The run is impossible.
    """
    listen = listen_address(address)
    require_optional("prometheus_client", "agent --metrics")
    from tracer.metrics.exposition import Exposition

    health, node = AgentHealth(), node_name()
    sources = MetricSources(own.label_sets, __version__, os.uname().release, node, lambda: health.is_ready)
    others: list[Output] = []
    if own.dump:
        recorder, output, sources = _recorder(own, sources)
        others.append(output)
        options = options | {"target": own.dump, "capture": recorder}
    if own.has_events:
        output, sources = _events(options, node, sources)
        others.append(output)
    if own.otlp:
        output, sources = _otlp(own.otlp, node, sources)
        others.append(output)
    if own.store:
        from tracer.store.agent_store import AgentStore

        others.append(AgentStore(*own.store).output(node))
    book = MetricBook(sources)
    options = options | {"numbers_connections": bool(own.store or own.otlp), "budget": own.budget}
    with MetricsEndpoint(listen, health, Exposition(book).text) as endpoint:
        print(f"Metrics at http://{endpoint.address}/metrics", file=sys.stderr, flush=True)
        return _trace(_joined(MetricsOutput(book, health), others), options)


def _recorder(own: AgentOptions, sources: MetricSources) -> tuple[FlightRecorder, Output, MetricSources]:
    """The recorder of captures around findings, the output that requests them, and the sources of the metrics with its numbers.

    Raises:
        OutputNotWritten: The directory cannot be used.
    """
    from tracer.capture.record.dump_counts import DumpCounts
    from tracer.capture.record.flight_recorder import RING_BYTES, DumpLimits, FlightRecorder
    from tracer.pipeline.capture_requests import CaptureRequests

    counts = DumpCounts()
    recorder = FlightRecorder(Path(own.dump), counts, DumpLimits(own.ring or RING_BYTES))
    return recorder, CaptureRequests(recorder), replace(sources, captures=counts.read)


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
