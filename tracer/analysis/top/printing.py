# SPDX-License-Identifier: Apache-2.0
"""Views of `top` that print one interval after the other: as plain tables, and as JSON."""

from __future__ import annotations

import io
import os
from typing import TextIO

from rich.console import Console, Group, RenderableType

from tracer.analysis.top import drawing
from tracer.analysis.top.interval import Interval
from tracer.analysis.top.interval_record import interval_object
from tracer.analysis.top.orders import rank
from tracer.util.color import console_options
from tracer.util.escape import json_line

PLAIN_COLUMNS = 120
"""Width of tables in a file or pipe, unless the variable COLUMNS says another one, columns."""
SHOWN_WAYS = 8
"""Number of ways between places that are printed below a table."""


class PrintedTables:
    """Prints each interval as a table.

    Args:
        dimension: What rows stand for.
        order: How they are sorted.
        most: Number of rows.
        out: The stream; None = standard output.
        counts: Packets and drops are numbers, as for a whole capture; False = they are rates.
    """

    def __init__(self, dimension: str, order: str, most: int, out: TextIO, counts: bool = False) -> None:
        self.dimension, self._order, self._most, self._out, self._counts = dimension, order, most, out, counts

    def begin(self) -> None: ...

    def show(self, interval: Interval) -> None:
        write(self._out, interval, self._order, self._most, self._counts)

    def note(self, text: str) -> bool:
        return False

    def close(self, last: Interval) -> None:
        self.show(last)


class PrintedRecords:
    """Prints each interval as one line of JSON. The arguments are the first ones of PrintedTables."""

    def __init__(self, dimension: str, order: str, most: int, out: TextIO) -> None:
        self.dimension, self._order, self._most, self._out = dimension, order, most, out

    def begin(self) -> None: ...

    def show(self, interval: Interval) -> None:
        self._out.write(json_line(interval_object(interval, self._order, self._most)) + "\n")
        self._out.flush()

    def note(self, text: str) -> bool:
        return False

    def close(self, last: Interval) -> None:
        self.show(last)


def write(out: TextIO, interval: Interval, order: str, most: int, counts: bool = False) -> None:
    """Writes one interval: head, table, and the times between places. Errors of the stream reach the caller."""
    target = Console(file=out, **console_options())
    width = target.width if out.isatty() else int(os.environ.get("COLUMNS") or PLAIN_COLUMNS)
    text = io.StringIO()
    options = console_options()
    options["force_terminal"] = target.is_terminal
    console = Console(file=text, highlight=False, width=width, **options)
    console.print(page(interval, order, most, width, counts))
    lines = (line.rstrip() for line in text.getvalue().splitlines())
    out.write("\n".join(lines) + "\n\n")
    out.flush()


def page(interval: Interval, order: str, most: int, width: int, counts: bool) -> RenderableType:
    """Head, table and times between places of one interval."""
    parts: list[RenderableType] = [*drawing.head(interval, order), ""]
    parts += [drawing.table(interval, rank(interval, order, most), width=width, counts=counts), ""]
    return Group(*parts, drawing.ways("from place to place", interval.total, SHOWN_WAYS, width))
