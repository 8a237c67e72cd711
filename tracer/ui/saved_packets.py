# SPDX-License-Identifier: Apache-2.0
"""Saves packets of the screen as JSON lines, the format of `-o json` and `export --to jsonl`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tracer.errors import OutputNotWritten
from tracer.export import CaptureInfo
from tracer.export.jsonl import JsonLines
from tracer.model.finding import Finding
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.render.parts.terminal_text import count
from tracer.ui.feed import ScreenFeed


def suggested_name() -> str:
    """A name for a new file: packets-20261124-140322.jsonl."""
    return time.strftime("packets-%Y%m%d-%H%M%S.jsonl")


def save(
    path: str,
    packets: Sequence[Packet],
    findings: Sequence[Finding],
    feed: ScreenFeed,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> str:
    """Writes a new file.

    Args:
        path: Name of the file, which must not exist.
        packets: The packets, in any order.
        findings: All findings so far.
        feed: The run.
        is_cancelled: Whether the user has left meanwhile.

    Returns:
        A sentence that says what was written.

    Raises:
        OutputNotWritten: The file exists, or cannot be written. An incomplete file is removed.
    """
    target = Path(path).expanduser()
    if os.path.lexists(target):
        raise OutputNotWritten(f"{path} exists already: choose another name.")
    about = CaptureInfo(target.name, "", feed.kernel, feed.title, 0, tuple(feed.results))
    try:
        lines = JsonLines(target, about)
    except FileExistsError:
        raise OutputNotWritten(f"{path} exists already: choose another name.") from None
    except OSError as e:
        raise OutputNotWritten(f"{path} cannot be written: {e.strerror or e}.") from e
    try:
        for packet in sorted(packets, key=lambda each: each.number):
            if is_cancelled():
                raise OutputNotWritten(f"{path} was not written: the view was closed first.")
            lines.packet(packet)
        for finding in findings:
            lines.finding(finding)
        lines.close(_summary(packets, findings, feed))
    except (OSError, OutputNotWritten) as e:
        target.unlink(missing_ok=True)
        if isinstance(e, OutputNotWritten):
            raise
        raise OutputNotWritten(f"{path} cannot be written: {e.strerror or e}.") from e
    return f"{count(len(packets), 'packet')} and {count(len(findings), 'finding')} are in {path}."


def _summary(packets: Sequence[Packet], findings: Sequence[Finding], feed: ScreenFeed) -> RunSummary:
    """The totals of the saved packets; losses are those of the whole run."""
    summary = RunSummary(findings=list(findings), lost=feed.counts.lost + feed.counts.left_out)
    for packet in packets:
        summary.packets += 1
        summary.incomplete += not packet.complete
        summary.outcomes[packet.outcome] = summary.outcomes.get(packet.outcome, 0) + 1
    times = [packet.time for packet in packets]
    summary.seconds = (max(times) - min(times)) / 1e9 if times else 0.0
    return summary
