# SPDX-License-Identifier: Apache-2.0
"""The command `agent` without --stdio: counts what fails until SIGTERM, and serves metrics. Imported only when it runs."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import Any

from tracer import __version__
from tracer.commands.start_notes import StartNotes
from tracer.metrics.endpoint import MetricsEndpoint, listen_address
from tracer.metrics.health import AgentHealth
from tracer.metrics.metric_book import MetricBook
from tracer.metrics.metric_sources import MetricSources
from tracer.metrics.metrics_output import MetricsOutput
from tracer.node.identity import node_name
from tracer.render.base import Output
from tracer.util.optional import require_optional
from tracer.util.status_line import StatusLine

StoreOptions = tuple[str, str, int]
"""URL of the store, directory of the spool and its bound in bytes, as in AgentStore."""
END_SECONDS = 2.0
"""Longest time that packets are explained after SIGTERM, s. With the removal of the probes it is within the grace period."""


def run(address: str, label_sets: int, options: dict[str, Any], store: StoreOptions | None = None) -> int:
    """Traces until SIGTERM, and serves metrics from before its start on. Returns the exit status.

    Args:
        address: Where metrics are served: ADDRESS:PORT.
        label_sets: Largest number of series of a metric, beside `other`.
        options: Those of `trace`.
        store: Where results are stored, too; None = nowhere.

    Raises:
        MetricsNotServed: The address cannot be used.
        OutputNotWritten: The spool of the store cannot be used.
        TraceError: The run is impossible.
    """
    listen = listen_address(address)
    require_optional("prometheus_client", "agent --metrics")
    from tracer.metrics.exposition import Exposition

    health = AgentHealth()
    sources = MetricSources(label_sets, __version__, os.uname().release, node_name(), lambda: health.is_ready)
    book = MetricBook(sources)
    with MetricsEndpoint(listen, health, Exposition(book).text) as endpoint:
        print(f"Metrics at http://{endpoint.address}/metrics", file=sys.stderr, flush=True)
        return _trace(_with_store(MetricsOutput(book, health), store), options | {"numbers_connections": store is not None})


def _with_store(output: MetricsOutput, store: StoreOptions | None) -> Output:
    """The output with that to the store beside it."""
    if store is None:
        return output
    from tracer.pipeline.joint_output import JointOutput
    from tracer.store.agent_store import AgentStore

    return JointOutput((output, AgentStore(*store).output(node_name())))


def _trace(output: Output, options: dict[str, Any]) -> int:
    """Traces this machine: what fails, and the packets that open connections."""
    with StartNotes(StatusLine(is_wanted=False)) as notes:
        from tracer.commands import trace as tracing

        return tracing.trace(
            (), outputs=(), notes=notes, view=nullcontext(output), end_seconds=END_SECONDS, gives_all_syns=True,
            **options | {"drops_only": True},
        )  # fmt: skip
