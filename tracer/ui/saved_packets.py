# SPDX-License-Identifier: Apache-2.0
"""Saves packets of the screen as JSON lines, the format of `-o json` and `export --to jsonl`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tracer.errors import OutputNotWritten
from tracer.model.joined_packet import JoinedPacket, ShownPacket
from tracer.model.summary import RunSummary
from tracer.packets.joined_views import first_time, last_packet
from tracer.render.parts.terminal_text import count
from tracer.ui.feed import ScreenFeed
from tracer.ui.node_results import NodeFinding, views_of
from tracer.ui.saved_lines import SavedLines


def suggested_name() -> str:
    """A name for a new file: packets-20261124-140322.jsonl."""
    return time.strftime("packets-%Y%m%d-%H%M%S.jsonl")


def save(
    path: str,
    packets: Sequence[ShownPacket],
    findings: Sequence[NodeFinding],
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
    try:
        lines = SavedLines(target, feed)
    except FileExistsError:
        raise OutputNotWritten(f"{path} exists already: choose another name.") from None
    except OSError as e:
        raise OutputNotWritten(f"{path} cannot be written: {e.strerror or e}.") from e
    try:
        for packet in sorted(packets, key=_order):
            if is_cancelled():
                raise OutputNotWritten(f"{path} was not written: the view was closed first.")
            lines.packet(packet)
        for found in findings:
            lines.finding(found)
        lines.close(_summary(packets, findings, feed))
    except (OSError, OutputNotWritten) as e:
        target.unlink(missing_ok=True)
        if isinstance(e, OutputNotWritten):
            raise
        raise OutputNotWritten(f"{path} cannot be written: {e.strerror or e}.") from e
    return f"{count(len(packets), 'packet')} and {count(len(findings), 'finding')} are in {path}."


def _order(shown: ShownPacket) -> int:
    """In which order packets are written: that of their numbers, on several nodes that of their times."""
    if not isinstance(shown, JoinedPacket):
        return shown.number
    return first_time(shown)


def _summary(packets: Sequence[ShownPacket], findings: Sequence[NodeFinding], feed: ScreenFeed) -> RunSummary:
    """The totals of the saved packets; losses are those of the whole run."""
    lost = feed.counts.lost + feed.counts.left_out
    summary = RunSummary(findings=[found.finding for found in findings], lost=lost)
    for packet in packets:
        outcome = last_packet(packet).outcome
        summary.packets += 1
        summary.incomplete += not all(view.packet.complete for view in views_of(packet))
        summary.outcomes[outcome] = summary.outcomes.get(outcome, 0) + 1
    times = [first_time(packet) for packet in packets]
    summary.seconds = (max(times) - min(times)) / 1e9 if times else 0.0
    return summary
