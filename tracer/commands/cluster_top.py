# SPDX-License-Identifier: Apache-2.0
"""The command `top` over the stream of several nodes, live or of their captures. Imported only when it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracer.analysis.top.node_counter import NodesTopOutput
from tracer.commands import cluster, read_nodes
from tracer.commands.cluster import ClusterRequest
from tracer.commands.top import TopRequest, capture_view, live_view
from tracer.pipeline.shutdown import StopRequest, reading


def trace(nodes: ClusterRequest, request: TopRequest, options: dict[str, Any]) -> int:
    """Traces several nodes until the end of the run, and shows each interval. Returns the exit status.

    Args:
        nodes: The nodes, and how they are reached.
        request: What is shown.
        options: The options of `trace`.

    Raises:
        NoAgent: No node could be traced.
        TraceError: The run is impossible.
    """
    options = request.limited(options)
    prepared = cluster.prepare(nodes, (), options)
    with live_view(request) as view:
        output = NodesTopOutput(view, request.seconds)

        def work(stop: StopRequest) -> None:
            output.open()
            output.note(prepared.sentence)
            cluster.complete(prepared, output, options, stop)

        return cluster.driven(output, work)


def replay(captures: Mapping[str, Sequence[str]], request: TopRequest, options: dict[str, Any]) -> int:
    """Shows captures of several nodes as one interval. Returns the exit status.

    Args:
        captures: The captures of each node.
        request: What is shown.
        options: The filter options.

    Raises:
        DamagedCapture: Not all captures could be read to their ends.
        BadOption: Captures of one node are not of one run.
        Interrupted: A signal came before everything was read: nothing is shown.
    """
    output = NodesTopOutput(capture_view(request))
    with reading(read_nodes.files(captures)) as stop:
        totals = read_nodes.replayed(captures, (), options, output, stop)
        if stop.is_requested:
            raise KeyboardInterrupt
        output.summary(totals.summary)
    read_nodes.require_whole(totals)
    return 0
