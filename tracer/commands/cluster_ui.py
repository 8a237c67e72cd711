# SPDX-License-Identifier: Apache-2.0
"""The command `ui` over the stream of several nodes, live or of their captures. Imported only when it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracer.cluster.cluster_run import END_SECONDS
from tracer.commands import cluster, read_nodes
from tracer.commands.cluster import ClusterRequest, result_arguments
from tracer.commands.ui import require_screen
from tracer.pipeline.shutdown import StopRequest, StopSignals


def trace(nodes: ClusterRequest, verbose: bool, options: dict[str, Any]) -> int:
    """Traces several nodes until the user leaves the view. Returns the exit status.

    Args:
        nodes: The nodes, and how they are reached.
        verbose: Show every hop.
        options: The options of `trace`.

    Raises:
        NoAgent: No node could be traced.
        TraceError: The run is impossible.
    """
    require_screen()
    from tracer.ui.feed import ScreenFeed
    from tracer.ui.screen_run import ScreenRun

    options["verbose"] = verbose
    prepared = cluster.prepare(nodes, result_arguments(options, ()), options)
    feed = ScreenFeed(verbose=verbose)

    def work(stop: StopRequest) -> int:
        feed.note(prepared.sentence)
        cluster.complete(prepared, feed, options, stop)
        return 0

    with StopSignals(END_SECONDS) as stop:
        return ScreenRun(feed, verbose).drive(lambda: work(stop), stop)


def replay(captures: Mapping[str, Sequence[str]], verbose: bool, options: dict[str, Any]) -> int:
    """Shows captures of several nodes. Returns the exit status.

    Args:
        captures: The captures of each node.
        verbose: Show every hop.
        options: The filter options.

    Raises:
        DamagedCapture: Not all captures could be read to their ends.
        BadOption: Captures of one node are not of one run.
    """
    from tracer.ui.feed import ScreenFeed
    from tracer.ui.screen_run import ScreenRun

    options["verbose"] = verbose
    feed = ScreenFeed(verbose=verbose)

    def work(stop: StopRequest) -> int:
        totals = read_nodes.replayed(captures, result_arguments(options, ()), options, feed, stop)
        feed.summary(totals.summary)
        if not stop.is_requested:
            read_nodes.require_whole(totals)
        return 0

    with StopSignals(0) as stop:
        return ScreenRun(feed, verbose).drive(lambda: work(stop), stop)
