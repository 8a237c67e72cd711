# SPDX-License-Identifier: Apache-2.0
"""The option `-r FILE`, and the filter options of all commands that read captures. Imported only when one of them runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tracer.capture.replay import runner
from tracer.capture.replay.file_series import opened
from tracer.capture.replay.runner import ReplayRequest
from tracer.errors import BadOption
from tracer.kube.selectors import NOT_COMBINED, Selectors
from tracer.pipeline import sinks
from tracer.pipeline.shutdown import StopRequest, reading
from tracer.render.base import Output
from tracer.selection.filter_options import FilterOptions


def replay_request(options: dict[str, Any]) -> ReplayRequest:
    """Makes the replay request from the options of `trace`. Raises BadOption."""
    selectors, filters = Selectors.of(options), FilterOptions.of(options)
    if selectors.has_either_end and (filters.ports or filters.hosts):
        raise BadOption(NOT_COMBINED)
    return ReplayRequest(
        filters.capture_filter(),
        selectors,
        options.get("drops_only", False),
        options.get("count", 0),
        options.get("no_rules", False),
        options.get("follow", False),
        quiet=options.get("quiet", False),
    )


def of_several_nodes(paths: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """The captures of each node; empty = all are of one node. Raises BadOption, CaptureUnreadable, NewerCapture."""
    if len(paths) < 2:
        return {}
    from tracer.commands import read_nodes

    captures = read_nodes.by_node(paths)
    return captures if len(captures) > 1 else {}


def read(paths: Sequence[str], options: dict[str, Any]) -> int:
    """`-r FILE`, once or more: prints what the run printed, or would have printed with these options. Returns the status."""
    if captures := of_several_nodes(paths):
        from tracer.commands import read_nodes

        return read_nodes.read(captures, options)
    request, outputs = replay_request(options), sinks.opened(options["outputs"], options["verbose"], waits=True)
    with reading(paths) as stop, opened(paths) as capture, outputs as output:
        for each in output.outputs():
            results = runner.facts(capture, each.shows_all_results)
            each.begin(results, str(runner.options(capture).get("said", "")), runner.release(capture))
        is_shown = not sys.stdout.isatty()
        with runner.bar(capture, f"reading {capture.path}", output.outputs(), is_shown) as progress:
            totals = runner.replay(capture, output, request, stop, progress)
        if capture.ended() is None:
            output.note(runner.CUT_SHORT)
        output.summary(totals)
        runner.check_complete(capture)
    return 0


def replayed(paths: Sequence[str], request: ReplayRequest, output: Output, stop: StopRequest) -> int:
    """Replays captures into an output that shows what has been read so far. Returns the status.

    Raises:
        DamagedCapture: A part could not be read.
    """
    with opened(paths) as capture:
        results = runner.facts(capture, output.shows_all_results)
        output.begin(results, f"-r {' -r '.join(paths)}", runner.release(capture))
        totals = runner.replay(capture, output, request, stop)
        if capture.ended() is None:
            output.note(runner.CUT_SHORT)
        output.summary(totals)
        runner.check_complete(capture)
    return 0
