# SPDX-License-Identifier: Apache-2.0
"""The screen of `ui`: connections, packets of the chosen one, the path of the chosen packet, findings."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Hashable
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.events import Resize
from textual.widgets import Input, Static

from tracer.errors import OutputNotWritten
from tracer.model.joined_packet import JoinedPacket, ShownPacket
from tracer.pipeline.shutdown import StopRequest
from tracer.render.parts.pane_text import finding_text, joined_text, notes_text, packet_text
from tracer.render.parts.terminal_text import count
from tracer.ui.dialogs import HelpWindow, SaveChoice, SaveWindow, key_line
from tracer.ui.feed import MOST_FINDINGS, ScreenFeed
from tracer.ui.head_lines import HeadLines
from tracer.ui.kept_connections import KeptConnection, KeptConnections
from tracer.ui.line_pane import RowPane, TextPane
from tracer.ui.node_results import NodeFinding, identity_of
from tracer.ui.row_text import ConnectionRows, finding_row, packet_row
from tracer.ui.saved_packets import save, suggested_name
from tracer.ui.text_search import ConnectionSearch, TextSearch
from tracer.util.lru_dict import LruDict
from tracer.util.terminal_watch import TerminalWatch

REFRESH_SECONDS = 0.15
"""Shortest time between two looks at the queue, s."""
LONGEST_REFRESH_SECONDS = 1.0
"""Longest time between two looks at the queue, s."""
IDLE_SHARE = 4
"""The screen rests this many times as long as it has computed: the rest of the processor is the run's."""
TAKEN_PACKETS = 4_000
"""Most packets that are taken from the queue at once."""
WIDE_COLUMNS = 110
"""Width from which findings stand beside the connections, characters."""
STOP_SECONDS = 0.1
"""Interval at which the screen looks whether the run was asked to end, s."""


class TraceScreen(App[None]):
    """The application.

    Args:
        feed: The results of the run.
        stop: Ends the run, and with it the screen.
        verbose: Show every hop at first.

    Attributes:
        kept: The connections that can be shown.
        failure: The error that ended the screen; None = none.
    """

    CSS_PATH = "screen.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,ctrl+q", "quit", show=False, priority=True),
        Binding("q", "quit", show=False),
        Binding("slash", "filter", show=False),
        Binding("escape", "clear", show=False),
        Binding("p", "pause", show=False),
        Binding("s", "save", show=False),
        Binding("v", "all_hops", show=False),
        Binding("n", "notes", show=False),
        Binding("question_mark,f1", "help", show=False),
    ]

    def __init__(self, feed: ScreenFeed, stop: StopRequest, verbose: bool = False) -> None:
        super().__init__()
        self.kept = KeptConnections()
        self.failure: BaseException | None = None
        self._feed, self._stop, self._verbose = feed, stop, verbose
        self._terminal = TerminalWatch(sys.__stdin__)
        self._findings: LruDict[Hashable, NodeFinding] = LruDict(MOST_FINDINGS, "findings of ui")
        self._found = ConnectionSearch(TextSearch())
        self._is_leaving = False
        self._cpu_seconds = 0.0
        self._head = HeadLines(feed, self.kept)
        self._drawn: tuple[object, ...] = ()
        self._drawn_lines: tuple[Text, ...] = ()
        self._shown_kind = "packet"
        self._connections: RowPane[KeptConnection] = RowPane(ConnectionRows().draw, lambda each: each.number, id="connections")
        self._packets: RowPane[ShownPacket] = RowPane(packet_row, identity_of, id="packets")
        self._finding_rows: RowPane[NodeFinding] = RowPane(finding_row, lambda each: each.key, id="findings")
        self._path = TextPane(id="path")
        self._count_line, self._note_line, self._key_line = (
            Static(id="counts"),
            Static(id="note"),
            Static(key_line(), id="keys"),
        )
        self._filter = Input(id="filter", placeholder="/ filter: address, port, Service, pod, rule, outcome")

    def compose(self) -> ComposeResult:
        yield self._count_line
        yield self._note_line
        with Container(id="top"):
            yield self._connections
            yield self._finding_rows
        yield self._packets
        yield self._path
        yield self._filter
        yield self._key_line

    def on_mount(self) -> None:
        self._connections.focus()
        self._cpu_seconds = time.thread_time()
        self.set_interval(STOP_SECONDS, self._look_for_stop)
        self._tick()

    def on_resize(self, event: Resize) -> None:
        self.screen_stack[0].set_class(event.size.width < WIDE_COLUMNS, "narrow")
        self._draw_lines()

    # The run

    def _look_for_stop(self) -> None:
        # Textual reads a terminal that was closed again and again, and a screen that does not change writes nothing.
        if self._stop.is_requested or self._terminal.is_closed:
            self._leave()

    def _tick(self) -> None:
        """Takes what waits, draws it, and rests."""
        cpu_seconds = time.thread_time()
        spent, self._cpu_seconds = cpu_seconds - self._cpu_seconds, cpu_seconds
        if not self._is_leaving:
            self._take()
            self._draw()
            self.set_timer(min(max(REFRESH_SECONDS, spent * IDLE_SHARE), LONGEST_REFRESH_SECONDS), self._tick)

    def _take(self) -> None:
        """Moves what waits in the queues to the screen, unless it is paused."""
        if self._head.is_paused:
            return
        packets = self._feed.packets
        for _ in range(min(len(packets), TAKEN_PACKETS)):
            self.kept.add(packets.popleft())
        if not packets:  # a verdict comes after its packet
            for node, verdict in self._feed.verdicts.read():
                self.kept.add_verdict(verdict, node)
        for found in self._feed.findings.read():
            self._add_finding(found)

    def _add_finding(self, found: NodeFinding) -> None:
        """Takes a finding, or its new state. The summary of a run on several nodes does not say of which node it is."""
        if self._feed.nodes and not found.node:
            same = [each for each in self._findings.values() if each.key[1:] == found.key[1:]]
            if same:
                found = NodeFinding(same[0].node, found.finding)
            if len(same) > 1:
                return  # the summaries of these nodes had it
        self._findings[found.key] = found

    def _leave(self) -> None:
        self._is_leaving = True
        self._stop.request()
        self.exit()

    def _handle_exception(self, error: Exception) -> None:
        """Ends the screen. The error is for the caller of `run`: Textual would print a traceback."""
        self.failure = self.failure or error
        self._stop.request()
        super()._handle_exception(error)
        self._exit_renderables.clear()

    # What is shown

    def _draw(self) -> None:
        """Draws the parts of the screen that have changed."""
        self._draw_lines()
        counts = self._feed.counts
        state = (
            self._feed.ended.is_set(),
            counts.packets,
            counts.unexplained,
            len(self._findings),
            self.kept.packets,
            self.kept.evicted_packets,
        )
        if state != self._drawn or self._feed.verdicts:
            self._drawn = state
            self._draw_panes()

    def _draw_panes(self) -> None:
        connections = self.kept.in_order()
        found = self._found.select(connections)
        is_other = self._connections.show(found)
        self._finding_rows.show(list(self._findings.values()))
        shown = f"{len(found):,} of {len(connections):,}" if self._found.search.words else f"{len(connections):,}"
        evicted = f", {self.kept.evicted:,} older not kept" if self.kept.evicted else ""
        has_ended = "no packet came" if self._feed.ended.is_set() else "waiting for packets ..."
        self._connections.empty_text = "no packet matches the filter" if connections else has_ended
        self._finding_rows.empty_text = "none so far"
        self._connections.border_title = f"Connections {shown}{evicted}"
        self._finding_rows.border_title = f"Findings {len(self._findings)}"
        self._draw_packets(is_other)

    def _draw_packets(self, is_other: bool) -> None:
        """Draws the packets of the chosen connection. is_other: another one was chosen."""
        connection = self._connections.chosen
        packets = self._found.search.packets(connection) if connection else []
        self._packets.show(packets)
        if is_other and packets:
            bad = connection.worst if connection else None
            self._packets.place(next((at for at, each in enumerate(packets) if each is bad), 0))
        left = connection.packets - len(packets) if connection else 0
        self._packets.border_title = f"Packets {len(packets):,}" + (f", {left:,} not shown" if left else "")
        self._draw_path()

    def _draw_path(self) -> None:
        finding = self._finding_rows.chosen
        if self._shown_kind == "notes":
            notes = list(self._feed.notes)
            self._path.border_title = "Notes"
            self._path.show(("notes", self._head.note_count), lambda columns: notes_text(notes, columns))
            return
        if self._shown_kind == "finding" and finding:
            self._path.border_title = "Finding"
            self._path.show(finding, lambda columns: finding_text(finding.finding, columns, finding.node))
            return
        connection, packet = self._connections.chosen, self._packets.chosen
        self._path.border_title = "Path of the packet"
        if not connection or not packet:
            self._path.show(None, None)
            return
        verdicts = connection.verdicts_of(packet)
        key = identity_of(packet), self._verbose, tuple(verdicts)
        if isinstance(packet, JoinedPacket):
            self._path.show(key, lambda columns: joined_text(packet, columns, self._verbose, verdicts))
        else:
            verdict = verdicts[0].verdict if verdicts else None
            self._path.show(key, lambda columns: packet_text(packet, columns, self._verbose, verdict))

    def _draw_lines(self) -> None:
        """Draws the lines with the counts and the notes, where they have changed: each update computes the layout again."""
        lines = self._head.counts(len(self._findings)), self._head.note()
        if lines != self._drawn_lines:
            self._drawn_lines = lines
            self._count_line.update(lines[0])
            self._note_line.display = bool(lines[1])
            self._note_line.update(lines[1])

    # Keys and messages

    def on_row_pane_chosen(self, event: RowPane.Chosen) -> None:
        panes: dict[object, Callable[[], object]] = {
            self._connections: self._packets.focus,
            self._packets: self._path.focus,
            self._finding_rows: self._path.focus,
        }
        self._shown_kind = "finding" if event.pane is self._finding_rows else "packet"
        if event.pane is self._connections:
            self._draw_packets(is_other=True)
        else:
            self._draw_path()
        if event.is_opened:
            panes[event.pane]()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input is self._filter:
            self._found = ConnectionSearch(TextSearch(event.value))
            self._draw_panes()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input is self._filter:
            self._connections.focus()

    async def action_quit(self) -> None:
        self._leave()

    def action_filter(self) -> None:
        self._filter.focus()

    def action_clear(self) -> None:
        """Clears the filter, and the line with the message or the note."""
        self._head.clear()
        self._filter.value = ""
        self._connections.focus()

    def action_pause(self) -> None:
        self._head.pause(not self._head.is_paused)
        self._draw_lines()

    def action_all_hops(self) -> None:
        self._verbose = not self._verbose
        self._draw_path()

    def action_notes(self) -> None:
        self._shown_kind = "packet" if self._shown_kind == "notes" else "notes"
        self._draw_path()

    def action_help(self) -> None:
        self.push_screen(HelpWindow())

    # Saving

    def action_save(self) -> None:
        choices = self._savable()
        labels = [f"{what}: {count(len(packets), 'packet')}" for what, packets in choices]

        def chosen(choice: SaveChoice | None) -> None:
            if choice:
                self.run_worker(self._save(choice.path, choices[choice.what][1]))

        self.push_screen(SaveWindow(labels, suggested_name()), chosen)

    def _savable(self) -> list[tuple[str, list[ShownPacket]]]:
        """What can be saved, with its packets."""
        search, connection = self._found.search, self._connections.chosen
        shown = [packet for each in self._connections.rows for packet in search.packets(each)]
        every = [packet for each in self.kept.in_order() for packet in each.kept()]
        found = [("Everything that is kept", every)]
        if search.words:
            found.insert(0, ("What the filter shows", shown))
        if connection:
            found.append(("The chosen connection", list(connection.kept())))
        return found

    async def _save(self, path: str, packets: list[ShownPacket]) -> None:
        self._head.message = f"Writing {path} ..."
        try:
            self._head.message = await asyncio.to_thread(
                save, path, packets, list(self._findings.values()), self._feed, lambda: self._is_leaving
            )
        except OutputNotWritten as e:
            self._head.message = str(e)
