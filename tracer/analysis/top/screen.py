# SPDX-License-Identifier: Apache-2.0
"""The view of `top` on a terminal: one table that changes, and keys."""

from __future__ import annotations

import signal
import threading
from collections import deque
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.text import Text

from tracer.analysis.top import drawing
from tracer.analysis.top.columns import WIDE_COLUMNS
from tracer.analysis.top.dimensions import DIMENSIONS
from tracer.analysis.top.interval import Interval
from tracer.analysis.top.keyboard import Keyboard
from tracer.analysis.top.orders import ORDERS, Ranking, rank
from tracer.analysis.top.printing import write
from tracer.analysis.top.row import Row
from tracer.render.parts.terminal_text import STYLES, plain
from tracer.util.color import console_options

REPAINTS_PER_SECOND = 4
KEPT_NOTES = 50
"""Number of notes that are printed when the screen is closed."""
SHOWN_NOTES = 2
"""Number of notes that the screen shows."""
TABLE_HEAD_LINES = 2
DETAIL_WAYS = 8
"""Number of ways between places that are shown of one row."""
KEYS = (
    ("1-7", f"by {', '.join(DIMENSIONS)}", "by"),
    ("s", "sort", "sort"),
    ("up/down enter", "packets of a row", "packets of a row"),
    ("p", "pause", "pause"),
    ("q", "quit", "quit"),
)
"""The keys, with their meaning on a wide and on a narrow terminal."""
DETAIL_KEYS = (("esc", "back", "back"), *KEYS[-2:])
NO_KEYS = (("Ctrl-C", "quit", "quit"),)


class Screen:
    """A view that has the terminal for itself, from `begin` to `close` or to the end of the block.

    Args:
        dimension: What rows stand for at first.
        order: How they are sorted at first.
        most: Number of rows of the last table, which stays on the terminal.
        out: The terminal.
        has_keys: Keys are read; False = another program reads them.
    """

    def __init__(self, dimension: str, order: str, most: int, out: TextIO, has_keys: bool = True) -> None:
        self.dimension, self._order, self._most, self._out = dimension, order, most, out
        self._lock = threading.RLock()
        self._console = Console(file=out, highlight=False, **console_options())
        self._keyboard = Keyboard(self.press) if has_keys else None
        self._interval: Interval | None = None
        self._selected: str | None = None
        self._detail: tuple[str, Row] | None = None
        self._is_paused = self._is_open = False
        self._notes: deque[str] = deque(maxlen=KEPT_NOTES)
        self._live = Live(
            console=self._console,
            screen=True,
            refresh_per_second=REPAINTS_PER_SECOND,
            get_renderable=self.draw,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def begin(self) -> None:
        self._is_open = True
        self._live.start()
        if self._keyboard:
            self._keyboard.open()

    def show(self, interval: Interval) -> None:
        with self._lock:
            if self._is_paused:
                return
            self._interval = interval
            if self._detail and (row := interval.rows.get(self._detail[0])):
                self._detail = self._detail[0], row

    def note(self, text: str) -> bool:
        with self._lock:
            self._notes.append(text)
        return True

    def close(self, last: Interval) -> None:
        """Restores the terminal, and prints the last complete table: the interval that the end cut short may be empty."""
        self._restore()
        write(self._out, self._interval or last, self._order, self._most)
        if last.so_far != (self._interval or last).so_far:
            self._console.print(drawing.missing_so_far(last))

    def _restore(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self._keyboard:
                self._keyboard.close()
        finally:
            self._live.stop()
        for note in self._notes:
            self._console.print(Text(plain(note)), style=STYLES["quiet"])

    def press(self, key: str) -> None:
        """Acts on a key."""
        with self._lock:
            dimensions, orders = list(DIMENSIONS), list(ORDERS)
            if key.isdecimal() and 0 < int(key) <= len(dimensions):
                self.dimension, self._selected, self._detail = dimensions[int(key) - 1], None, None
                self._is_paused = False
            elif key == "s":
                self._order = orders[(orders.index(self._order) + 1) % len(orders)]
            elif key in ("up", "down"):
                self._select(1 if key == "down" else -1)
            elif key == "enter" and self._interval and self._selected:
                row = self._interval.rows.get(self._selected)
                self._detail = (self._selected, row) if row else None
            elif key == "back":
                self._detail = None
            elif key == "p":
                self._is_paused = not self._is_paused
            elif key == "q":
                signal.raise_signal(signal.SIGINT)

    def _select(self, step: int) -> None:
        """Selects the next row, or the one before."""
        if not self._interval or self._detail:
            return
        keys = [key for key, _ in rank(self._interval, self._order, len(self._interval.rows)).rows]
        if not keys:
            return
        at = keys.index(self._selected) + step if self._selected in keys else 0
        self._selected = keys[max(0, min(at, len(keys) - 1))]

    def draw(self) -> RenderableType:
        """The whole screen."""
        with self._lock:
            width, height = self._console.size
            head = self._head()
            notes = [
                Text(plain(note), style=STYLES["doubt"], no_wrap=True, overflow="ellipsis")
                for note in list(self._notes)[-SHOWN_NOTES:]
            ]
            foot = [*notes, self._footer()]
            body_lines = max(1, height - len(head) - len(foot))
            layout = Layout()
            layout.split_column(
                Layout(Group(*head), size=len(head)),
                Layout(self._body(width, body_lines), size=body_lines),
                Layout(Group(*foot), size=len(foot)),
            )
            return layout

    def _head(self) -> list[Text]:
        interval = self._interval
        if interval is None or interval.dimension != self.dimension:
            title = DIMENSIONS[self.dimension].title
            lines = [Text(f"top by {title}   counting the first interval", style=STYLES["strong"])]
        else:
            lines = drawing.head(interval, self._order)
            if self._is_paused:
                lines[0].append("   paused", style=STYLES["doubt"])
        for line in lines:
            line.no_wrap, line.overflow = True, "ellipsis"
        return [*lines, Text("")]

    def _body(self, width: int, lines: int) -> RenderableType:
        interval = self._interval
        if interval is None or interval.dimension != self.dimension:
            return Text(" ")  # Layout shows its own name instead of an empty text
        if self._detail:
            key, row = self._detail
            title = f"{key}   {row.owner}".strip()
            shown = min(len(row.ways), DETAIL_WAYS)
            rest = max(1, lines - shown - 3)
            return Group(drawing.ways(title, row, DETAIL_WAYS, width), "", drawing.packets(key, row, rest, width))
        return drawing.table(interval, *self._window(interval, lines - TABLE_HEAD_LINES), width=width, folds=False)

    def _window(self, interval: Interval, lines: int) -> tuple[Ranking, int | None]:
        """The rows that fit, with the selected one among them, and its place."""
        ranking = rank(interval, self._order, max(1, lines - 1))
        keys = [key for key, _ in ranking.rows]
        if self._selected is None or self._selected not in interval.rows or self._selected in keys:
            return ranking, keys.index(self._selected) if self._selected in keys else None
        ranking.rows[-1] = (self._selected, interval.rows[self._selected])
        return ranking, len(keys) - 1

    def _footer(self) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        keys = NO_KEYS if not self._keyboard else DETAIL_KEYS if self._detail else KEYS
        for key, wide, narrow in keys:
            line.append("  " if line else "")
            line.append(key, style=STYLES["strong"])
            line.append(f" {wide if self._console.width >= WIDE_COLUMNS else narrow}", style=STYLES["quiet"])
        return line
