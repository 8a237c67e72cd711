# SPDX-License-Identifier: Apache-2.0
"""The command `ui`: a full-screen view of a run or of a capture. Imported only when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from tracer.commands.start_notes import StartNotes
from tracer.errors import NoLibrary, NoTerminal
from tracer.util.optional import installation, require_optional

END_SECONDS = 0.5
"""Longest time that packets are explained after the end was asked for, s. The others are counted."""
LEAST_TEXTUAL = (2, 1)
"""The oldest version of Textual that the view works with: Debian 13's. Debian 12 has 0.1."""
WEB_DRIVER = "TEXTUAL_DRIVER"
"""Environment variable that `textual serve` sets: a browser is the terminal then."""


def require_screen() -> None:
    """Checks that the view can be shown.

    Raises:
        NoLibrary: Textual is missing or too old.
        NoTerminal: There is no terminal.
    """
    require_optional("textual", "ui")
    from importlib.metadata import version

    found = version("textual")
    if tuple(int(part) for part in found.split(".")[:2] if part.isdecimal()) < LEAST_TEXTUAL:
        least = ".".join(map(str, LEAST_TEXTUAL))
        raise NoLibrary(f"ui needs textual {least} or later, and {found} is installed: {installation('textual')}.")
    streams = (sys.__stdin__, sys.__stdout__, sys.__stderr__)
    if not os.environ.get(WEB_DRIVER) and not all(stream and stream.isatty() for stream in streams):
        raise NoTerminal(
            "ui needs a terminal: standard input, output or error is not one. For files and pipes use `top`, or no command."
        )


def trace(notes: StartNotes, verbose: bool, options: dict[str, Any]) -> int:
    """Traces until the user leaves the view. options: those of `trace`. Returns the exit status. Raises TraceError."""
    require_screen()
    from tracer.commands import trace as tracing
    from tracer.ui.feed import ScreenFeed
    from tracer.ui.screen_run import ScreenRun

    feed = ScreenFeed(verbose=verbose)
    return tracing.trace(
        (), outputs=(), notes=notes, verbose=verbose, view=nullcontext(feed), end_seconds=END_SECONDS,
        numbers_connections=True, drive=ScreenRun(feed, verbose).drive, **options,
    )  # fmt: skip


def replay(paths: Sequence[str], verbose: bool, options: dict[str, Any]) -> int:
    """Shows captures. options: the filter options. Returns the exit status. Raises TraceError."""
    require_screen()
    from tracer.commands import read
    from tracer.pipeline.shutdown import StopSignals
    from tracer.ui.feed import ScreenFeed
    from tracer.ui.screen_run import ScreenRun

    if captures := read.of_several_nodes(paths):
        from tracer.commands import cluster_ui

        return cluster_ui.replay(captures, verbose, options)
    request = replace(read.replay_request(options), is_by_packet=True, numbers_connections=True)
    feed = ScreenFeed(verbose=verbose)
    with StopSignals(0) as stop:
        return ScreenRun(feed, verbose).drive(lambda: read.replayed(paths, request, feed, stop), stop)
