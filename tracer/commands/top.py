# SPDX-License-Identifier: Apache-2.0
"""The command `top`: a live table of traffic, or one table of a capture. Imported only when it runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tracer.analysis.top.packet_counter import TopOutput, View
from tracer.analysis.top.printing import PrintedRecords, PrintedTables
from tracer.commands.start_notes import StartNotes
from tracer.node.identity import node_name

END_SECONDS = 0.5
"""Longest time that packets are explained after Ctrl-C, s: a table needs no backlog. The others are counted."""


@dataclass(frozen=True)
class TopRequest:
    """What is shown.

    Attributes:
        by: What rows stand for.
        sort: How they are sorted.
        rows: Number of rows in printed tables and JSON.
        form: "text" or "json".
        interval: Length of an interval, s.
        once: One interval, then the end.
    """

    by: str
    sort: str
    rows: int
    form: str = "text"
    interval: float = 2.0
    once: bool = False

    @property
    def seconds(self) -> float:
        """Length of an interval of a live run, s; math.inf = the whole run is one."""
        return math.inf if self.once else self.interval

    def limited(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of `trace`, with the end of the run after one interval if there is only one."""
        limit = min(options["duration"] or math.inf, self.interval) if self.once else options["duration"]
        return {**options, "duration": limit}


def trace(cmd: Sequence[str], request: TopRequest, notes: StartNotes, options: dict[str, Any]) -> int:
    """Traces until the end of the run, and shows each interval. options: those of `trace`. Returns the exit status."""
    from tracer.commands import trace as tracing

    view = _output(request, bool(cmd))
    limits = request.limited(options)
    return tracing.trace(cmd, outputs=(), notes=notes, verbose=False, count=0, view=view, end_seconds=END_SECONDS, **limits)


@contextmanager
def _output(request: TopRequest, has_command: bool) -> Iterator[TopOutput]:
    """The output of a run on this machine."""
    with live_view(request, has_keys=not has_command) as view:
        yield TopOutput(view, request.seconds, host=node_name())


@contextmanager
def live_view(request: TopRequest, has_keys: bool = True) -> Iterator[View]:
    """The view of a live run: a screen on a terminal, otherwise printed tables. has_keys: no other program reads the keys."""
    arguments = (request.by, request.sort, request.rows, sys.stdout)
    if request.form == "json":
        yield PrintedRecords(*arguments)
    elif request.once or not sys.stdout.isatty():
        yield PrintedTables(*arguments)
    else:
        from tracer.analysis.top.screen import Screen

        with Screen(*arguments, has_keys=has_keys) as screen:
            yield screen


def capture_view(request: TopRequest) -> View:
    """The view of captures, which are one interval."""
    arguments = (request.by, request.sort, request.rows, sys.stdout)
    return PrintedRecords(*arguments) if request.form == "json" else PrintedTables(*arguments, counts=True)


def replay(paths: Sequence[str], request: TopRequest, options: dict[str, Any]) -> int:
    """Shows captures as one interval. options: the filter options. Returns the exit status."""
    from tracer.capture.replay import runner
    from tracer.capture.replay.file_series import opened
    from tracer.commands import read
    from tracer.pipeline.shutdown import reading

    if captures := read.of_several_nodes(paths):
        from tracer.commands import cluster_top

        return cluster_top.replay(captures, request, options)
    replay_request = read.replay_request(options)
    with reading(paths) as stop, opened(paths) as capture:
        output = TopOutput(capture_view(request), host=capture.host.get("name", ""))
        output.begin(runner.facts(capture, full=False), "")
        with runner.bar(capture, f"reading {capture.path}", [output]) as progress:
            totals = runner.replay(capture, output, replay_request, stop, progress)
        if stop.is_requested:
            raise KeyboardInterrupt
        if capture.ended() is None:
            output.note(runner.CUT_SHORT)
        output.summary(totals)
        runner.check_complete(capture)
    return 0
