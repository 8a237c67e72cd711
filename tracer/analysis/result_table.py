# SPDX-License-Identifier: Apache-2.0
"""Prints the tables of statistics with rich, with bars for shares, or as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from tracer.analysis.durations import short_time
from tracer.util.color import console_options
from tracer.util.escape import escaped, json_line

BAR_WIDTH = 24
"""Width of a bar, columns."""
MICROSECONDS = " us"
"""End of the name of a column with times in us. A reader gets them with a unit that fits, and the name without this end."""
GAP, INDENT = 2, 8
"""Blanks between columns, and before a text that stands below its row, columns."""


@dataclass(frozen=True)
class ResultTable:
    """A table.

    Attributes:
        title: The title.
        columns: The names of the columns.
        rows: The rows, each with one value per column.
        bar: The name of the column that is drawn as bars; "" = none.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]] = field(default_factory=tuple)
    bar: str = ""


def show(tables: Iterable[ResultTable], out: TextIO, form: str) -> None:
    """Prints tables. form: "text", or "json" for one object per table."""
    if form == "json":
        for table in tables:
            rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
            out.write(json_line({"type": "table", "title": table.title, "rows": rows}) + "\n")
        return
    from rich.console import Console
    from rich.text import Text

    class Unguarded(Console):
        def on_broken_pipe(self) -> None:
            """Raises the error again: rich would exit with status 1, which `diff` uses for different captures."""
            raise

    # Lines are folded only on a terminal.
    console = Unguarded(file=out, highlight=False, width=None if out.isatty() else 200, **console_options())
    for table in tables:
        # Not as rich's own title, which is folded to the width of a narrow table.
        console.print(Text(escaped(table.title), style="bold"))
        console.print(_drawn(table, console.width))
        console.print()


class _TableTexts:
    """The texts of a table as a reader gets them: escaped, and times with their unit.

    Attributes:
        names: The names of the columns.
        rows: The rows.
        is_number: Whether a column has numbers only.
        widths: The width of each column, if no text is wrapped.
    """

    def __init__(self, table: ResultTable) -> None:
        from rich.cells import cell_len

        self.names = [escaped(name.removesuffix(MICROSECONDS)) for name in table.columns]
        self.rows = [[escaped(_text(*cell)) for cell in zip(row, table.columns, strict=True)] for row in table.rows]
        self.is_number = [
            bool(table.rows) and all(isinstance(row[at], int | float) for row in table.rows) for at in range(len(self.names))
        ]
        self.widths = [max(cell_len(row[at]) for row in (self.names, *self.rows)) for at in range(len(self.names))]

    def room(self, width: int) -> int:
        """The columns of a line that the other columns leave for the last one, without a bar."""
        return width - sum(self.widths[:-1]) - GAP * (len(self.widths) - 1)

    @property
    def width(self) -> int:
        """The width of the table, if no text is wrapped."""
        return sum(self.widths) + GAP * (len(self.widths) - 1)


def _drawn(table: ResultTable, width: int) -> Any:
    """The table in a line of `width` columns. Numbers and short texts are never wrapped."""
    texts = _TableTexts(table)
    last, room = texts.widths[-1], texts.room(width)
    if texts.rows and not table.bar and not texts.is_number[-1] and room < min(last, width // 3) and room >= -GAP:
        return _below(texts)
    return _beside(table, texts, width)


def _below(texts: _TableTexts) -> Any:
    """The table with each text of the last column below its row."""
    from rich.cells import cell_len
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    lines: list[Any] = []
    for cells in (texts.names, *texts.rows):
        parts = []
        for cell, width, is_number in zip(cells[:-1], texts.widths[:-1], texts.is_number[:-1], strict=True):
            blanks = " " * (width - cell_len(cell))
            parts.append(blanks + cell if is_number else cell + blanks)
        style = "bold" if cells is texts.names else ""
        lines.append(Text((" " * GAP).join(parts).rstrip(), style=style, no_wrap=True))
        lines.append(Padding(Text(cells[-1], style=style), (0, 0, 0, INDENT)))
    return Group(*lines)


def _beside(table: ResultTable, texts: _TableTexts, width: int) -> Any:
    """The table with all columns beside each other; a bar only where it has room."""
    from rich.bar import Bar
    from rich.table import Table as Drawn
    from rich.text import Text

    has_bar = bool(table.bar) and texts.width + GAP + BAR_WIDTH <= width
    is_wrapped = texts.widths.index(max(texts.widths)) if texts.width > width else -1
    drawn = Drawn(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for at, name in enumerate(texts.names):
        keeps = texts.is_number[at] or (at != is_wrapped and texts.widths[at] <= width // 3)
        drawn.add_column(Text(name), justify="right" if texts.is_number[at] else "left", overflow="fold", no_wrap=keeps)
    if has_bar:
        drawn.add_column("", width=BAR_WIDTH)
    at = table.columns.index(table.bar) if has_bar else 0
    most = max((float(row[at]) for row in table.rows), default=0) if has_bar else 0
    for row, shown in zip(table.rows, texts.rows, strict=True):
        cells: list[Any] = [Text(text) for text in shown]
        if has_bar:
            cells.append(Bar(most or 1, 0, float(row[at]), width=BAR_WIDTH, color="cyan"))
        drawn.add_row(*cells)
    if not table.rows:
        drawn.add_row(Text("nothing", style="dim"))
    return drawn


def _text(value: Any, column: str) -> str:
    if isinstance(value, int | float) and column.endswith(MICROSECONDS):
        return short_time(value)
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
