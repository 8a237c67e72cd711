# SPDX-License-Identifier: Apache-2.0
"""Prints the tables of statistics with rich, with bars for shares, or as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from tracer.util.color import console_options
from tracer.util.escape import escaped, json_line

WIDTH = 24
"""Width of a bar, columns."""


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
        console.print(_drawn(table))
        console.print()


def _drawn(table: ResultTable) -> Any:
    from rich.bar import Bar
    from rich.table import Table as Drawn
    from rich.text import Text

    drawn = Drawn(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in table.columns:
        number = bool(table.rows) and all(isinstance(row[table.columns.index(column)], int | float) for row in table.rows)
        drawn.add_column(Text(escaped(column)), justify="right" if number else "left", overflow="fold")
    if table.bar:
        drawn.add_column("", width=WIDTH)
    at = table.columns.index(table.bar) if table.bar else 0
    most = max((float(row[at]) for row in table.rows), default=0) if table.bar else 0
    for row in table.rows:
        cells: list[Any] = [Text(escaped(_text(value))) for value in row]
        if table.bar:
            cells.append(Bar(most or 1, 0, float(row[at]), width=WIDTH, color="cyan"))
        drawn.add_row(*cells)
    if not table.rows:
        drawn.add_row(Text("nothing", style="dim"))
    return drawn


def _text(value: Any) -> str:
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
