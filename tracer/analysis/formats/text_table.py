# SPDX-License-Identifier: Apache-2.0
"""A table for the terminal. It is as wide as the terminal, elsewhere 80 columns; no line is longer.

Long texts are wrapped inside their column: a line that continues one begins with the mark CONTINUED. Where a word would be
divided or a text take too many lines, the columns do not fit beside each other: each row becomes a list of them. There a text
of more than MOST_LINES lines ends with CUT. NULL is NULL_SHOWN. Numbers are never wrapped.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TextIO

from rich.cells import cell_len, chop_cells

from tracer.analysis.formats import QueryResult, Value
from tracer.util.escape import escaped

WIDTH = 80
"""Width where the output is no terminal, columns."""
GAP = 2
"""Blanks between two columns."""
LEAST = 12
"""Least width of a column whose texts are wrapped, columns."""
LONGEST_WORD = 40
"""Longest word that is not divided, columns: an IPv6 address has 39, the name of a chain at most 32."""
MOST_COLUMN_LINES, MOST_LINES = 6, 16
"""Most lines of one text, in a column and in a list."""
CONTINUED, CUT, NULL_SHOWN = "> ", " ...", "-"


def write_table(result: QueryResult, out: TextIO) -> None:
    width = shutil.get_terminal_size((WIDTH, 24)).columns if out.isatty() else WIDTH
    if not result.rows:
        out.write("No rows.\n")
        return
    names = [escaped(name) for name in result.columns]
    rows = [[_shown(value) for value in row] for row in result.rows]
    fixed = [all(not isinstance(row[at], str) for row in result.rows) for at in range(len(names))]
    widths = _widths(names, rows, fixed, max(width, LEAST * 2))
    if widths and all(len(_wrapped(*cell)) <= MOST_COLUMN_LINES for row in rows for cell in zip(row, widths, strict=True)):
        _write_columns(names, rows, fixed, widths, out)
    else:
        _write_lists(names, rows, max(width, LEAST * 2), out)


def _shown(value: Value) -> str:
    """The text of a value. Numbers have no separators, so that they can be copied into the next query."""
    if value is None:
        return NULL_SHOWN
    return str(value).lower() if isinstance(value, bool) else escaped(value) if isinstance(value, str) else str(value)


def _widths(names: Sequence[str], rows: Sequence[Sequence[str]], fixed: Sequence[bool], width: int) -> list[int] | None:
    """The widths of the columns; None when they do not fit beside each other. The widest columns of text become narrower."""
    widths = [max(cell_len(name), *(cell_len(row[at]) for row in rows)) for at, name in enumerate(names)]
    words = [max(_longest_word(row[at]) for row in rows) for at in range(len(names))]
    least = [
        width if is_fixed else min(width, max(LEAST, cell_len(name), word))
        for width, is_fixed, name, word in zip(widths, fixed, names, words, strict=True)
    ]
    room = width - GAP * (len(names) - 1)
    if sum(least) > room:
        return None
    while sum(widths) > room:
        _, at = max((w, at) for at, w in enumerate(widths) if w > least[at])
        widths[at] -= 1
    return widths


def _longest_word(text: str) -> int:
    """Width that keeps the words of a text whole, of which each may begin a line that continues it."""
    first, *others = text.split(" ")
    return min(LONGEST_WORD, max(cell_len(first), *(cell_len(word) + len(CONTINUED) for word in others), 0))


def _write_columns(
    names: Sequence[str], rows: Sequence[Sequence[str]], fixed: Sequence[bool], widths: Sequence[int], out: TextIO
) -> None:
    for cells in (names, ["-" * width for width in widths], *rows):
        wrapped = [_wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)]
        for line in range(max(map(len, wrapped))):
            shown = [lines[line] if line < len(lines) else "" for lines in wrapped]
            parts = [_padded(*cell) for cell in zip(shown, widths, fixed, strict=True)]
            out.write((" " * GAP).join(parts).rstrip() + "\n")


def _padded(text: str, width: int, right: bool) -> str:
    blanks = " " * (width - cell_len(text))
    return blanks + text if right else text + blanks


def _wrapped(text: str, width: int) -> list[str]:
    """The lines of a text. It is divided at blanks, unless a word is too long for a line."""
    lines: list[str] = []
    while cell_len(text) + (len(CONTINUED) if lines else 0) > width:
        head = chop_cells(text, width - (len(CONTINUED) if lines else 0))[0]
        at = head.rfind(" ")
        if text[len(head) : len(head) + 1] != " " and at > 0:
            word = text[at + 1 : at + 1 + width].partition(" ")[0]
            head = head[:at] if at > len(head) // 3 or cell_len(word) + len(CONTINUED) <= width else head
        lines.append(CONTINUED * bool(lines) + head)
        text = text[len(head) :].removeprefix(" ")
    return [*lines, CONTINUED * bool(lines) + text]


def _shortened(lines: list[str], width: int) -> list[str]:
    """The lines of a text, of which those after MOST_LINES are replaced by a mark."""
    if len(lines) <= MOST_LINES:
        return lines
    last = chop_cells(lines[MOST_LINES - 1], width - len(CUT))[0]
    return [*lines[: MOST_LINES - 1], last + CUT]


def _write_lists(names: Sequence[str], rows: Sequence[Sequence[str]], width: int, out: TextIO) -> None:
    """Writes one line a value, the rows numbered. Long names are shortened."""
    most = min(max(map(cell_len, names)), width // 2)
    room = width - most - GAP * 2
    for number, row in enumerate(rows, 1):
        out.write(f"row {number}\n")
        for name, cell in zip(names, row, strict=True):
            label = name if cell_len(name) <= most else chop_cells(name, most - len(CUT))[0] + CUT
            for at, line in enumerate(_shortened(_wrapped(cell, room), room)):
                out.write(f"{' ' * GAP}{_padded('' if at else label, most, False)}{' ' * GAP}{line}".rstrip() + "\n")


FORMAT = write_table
