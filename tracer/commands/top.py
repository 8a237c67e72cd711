# SPDX-License-Identifier: Apache-2.0
"""The command `top`: a live table of traffic, or one table of a capture. Imported only when it runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tracer.analysis.top.packet_counter import TopOutput
from tracer.analysis.top.printing import PrintedRecords, PrintedTables
from tracer.commands.start_notes import StartNotes

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


def trace(cmd: Sequence[str], request: TopRequest, notes: StartNotes, options: dict[str, Any]) -> int:
    """Traces until the end of the run, and shows each interval. options: those of `trace`. Returns the exit status."""
    from tracer.commands import trace as tracing

    if request.once:
        options["duration"] = min(options["duration"] or math.inf, request.interval)
    return tracing.trace(
        cmd, outputs=(), notes=notes, verbose=False, count=0, view=_view(request, bool(cmd)), end_seconds=END_SECONDS, **options
    )


@contextmanager
def _view(request: TopRequest, has_command: bool) -> Iterator[TopOutput]:
    """The output of a live run: a screen on a terminal, otherwise printed tables. A command of the user reads the keys."""
    arguments = (request.by, request.sort, request.rows, sys.stdout)
    seconds = math.inf if request.once else request.interval
    if request.form == "json":
        yield TopOutput(PrintedRecords(*arguments), seconds)
    elif request.once or not sys.stdout.isatty():
        yield TopOutput(PrintedTables(*arguments), seconds)
    else:
        from tracer.analysis.top.screen import Screen

        with Screen(*arguments, has_keys=not has_command) as screen:
            yield TopOutput(screen, seconds)


def replay(paths: Sequence[str], request: TopRequest, options: dict[str, Any]) -> int:
    """Shows captures as one interval. options: the filter options. Returns the exit status."""
    from tracer.capture.replay import runner
    from tracer.capture.replay.file_series import opened
    from tracer.commands import read
    from tracer.pipeline.shutdown import reading

    replay_request = read.replay_request(options)
    arguments = (request.by, request.sort, request.rows, sys.stdout)
    output = TopOutput(PrintedRecords(*arguments) if request.form == "json" else PrintedTables(*arguments, counts=True))
    with reading(paths) as stop, opened(paths) as capture:
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
