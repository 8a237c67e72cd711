# SPDX-License-Identifier: Apache-2.0
"""The lines above the panes: the totals of the run, and a message or note."""

from __future__ import annotations

from rich.text import Text

from tracer.render.parts.terminal_text import STYLES, count, plain
from tracer.ui.feed import ScreenFeed
from tracer.ui.kept_connections import KeptConnections

BUSY_PACKETS = 4_000
"""Number of waiting packets from which the first line says how many wait."""


class HeadLines:
    """Makes the lines.

    Args:
        feed: The run.
        kept: The connections that can be shown.

    Attributes:
        message: What an action has done; "" = nothing.
        is_paused: The view stops.
    """

    def __init__(self, feed: ScreenFeed, kept: KeptConnections) -> None:
        self._feed, self._kept = feed, kept
        self.message, self.is_paused = "", False
        self._cleared_notes = self._evicted_before_pause = 0

    def pause(self, is_paused: bool) -> None:
        """Stops the view, or lets it go on."""
        self.is_paused, self._evicted_before_pause = is_paused, self._feed.packets.evicted

    def clear(self) -> None:
        """Removes the message, or the notes so far."""
        self.message, self._cleared_notes = "", self.note_count

    def counts(self, found: int) -> Text:
        """The state of the run and its totals. found: Number of findings."""
        counts = self._feed.counts
        line = self._state()
        if nodes := len(self._feed.nodes):
            line.append(f"  {count(nodes, 'node')}", STYLES["place"])
        line.append(f"  {counts.packets:,} packets", STYLES["strong"])
        for number, what, style in (
            (counts.bad, "dropped", "bad"),
            (found, "finding" if found == 1 else "findings", "bad"),
            (counts.lost, "lost", "doubt"),
            (counts.left_out, "left out", "doubt"),
        ):
            line.append("  ").append(f"{number:,} {what}", STYLES[style] if number else STYLES["quiet"])
        for number, what in (
            (counts.incomplete, "incomplete"),
            (counts.unexplained, "unexplained"),
            (counts.not_sent, "not sent"),
            (self._kept.evicted_packets + self._feed.packets.evicted, "not kept"),
        ):
            if number:
                line.append(f"  {number:,} {what}", STYLES["doubt"])
        return line

    def _state(self) -> Text:
        """Whether the run goes on, and how many packets wait."""
        waiting = len(self._feed.packets)
        if self.is_paused:
            missed = self._feed.packets.evicted - self._evicted_before_pause
            more = f", {missed:,} older ones are not kept" if missed else ""
            return Text(f" PAUSED: {waiting:,} wait{more}", "black on yellow")
        if waiting > BUSY_PACKETS:
            return Text(f" {waiting:,} wait", STYLES["doubt"])
        return Text(" ended" if self._feed.ended.is_set() else " live", STYLES["strong"])

    def note(self) -> Text:
        """The error of the run, the last message, or the newest note."""
        error, line = self._feed.error, Text(no_wrap=True, overflow="ellipsis")
        if error and not isinstance(error, SystemExit):
            return line.append(plain(f" The run has ended: {str(error) or type(error).__name__}"), STYLES["bad"])
        notes = self._feed.notes
        if self.message:
            line.append(plain(f" {self.message}"), STYLES["doubt"])
        elif notes and self._cleared_notes < self.note_count:
            line.append(f" {count(len(notes), 'note')} (n): ", "bold cyan").append(plain(notes[-1]), STYLES["doubt"])
        return line

    @property
    def note_count(self) -> int:
        """Number of notes so far."""
        return len(self._feed.notes) + self._feed.notes.evicted
