# SPDX-License-Identifier: Apache-2.0
"""The data dictionary: all tables and columns as Markdown, for docs/sql.md.

    python -m tracer.analysis.dictionary docs/sql.md

writes them between the two marks of the page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tracer.analysis import tables
from tracer.analysis.table_schema import NODE, TableSchema

BEGIN, END = "<!-- data dictionary: begin -->", "<!-- data dictionary: end -->"
ORDER = ("packets", "connections", "syns", "hops", "rule_hits", "drops", "findings", "counters", "losses")
"""The tables in the order of the page; others follow."""


def lines() -> Iterator[str]:
    """Yields the lines of the data dictionary."""
    known = tables.tables()
    for name in (*(n for n in ORDER if n in known), *(n for n in known if n not in ORDER)):
        yield from _table(name, known[name])


def _table(name: str, table: TableSchema[Any]) -> Iterator[str]:
    yield from (f"### {name}", "", f"{table.description}.", "", "| column | type | unit | meaning |", "|---|---|---|---|")
    for column in (NODE, *table.columns):
        yield f"| `{column.name}` | {column.type} | {column.unit} | {column.meaning} |"
    yield ""


def filled(page: str) -> str:
    """The page with the current data dictionary between its marks. Raises ValueError for a page without the marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"The page has no marks {BEGIN} and {END}.")
    return "\n".join((before + BEGIN, "", *lines())) + END + after


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
