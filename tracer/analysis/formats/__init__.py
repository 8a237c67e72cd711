# SPDX-License-Identifier: Apache-2.0
"""Output formats of a query's result. Each format is one file of this package, and one row of FORMATS.

Its `FORMAT(result, out)` writes the result. Texts come from packets, rules and objects, so every format escapes control
characters, and what its readers would act on: formulas in CSV, markup in Markdown.

Must not know: DuckDB, the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TextIO, TypeAlias

from tracer.errors import BadOption

Value: TypeAlias = bool | int | float | str | None


@dataclass(frozen=True)
class QueryResult:
    """The result of a query.

    Attributes:
        columns: Names of the columns, each one once.
        rows: The rows, each with one value per column; None = NULL.
        is_cut: There are more rows.
    """

    columns: tuple[str, ...]
    rows: Sequence[tuple[Value, ...]]
    is_cut: bool = False


Write: TypeAlias = Callable[[QueryResult, TextIO], None]
FORMATS = {"table": "text_table", "csv": "csv", "json": "json_rows", "markdown": "markdown"}
"""The file of each format, by the name of the format; the usual one first."""


def names() -> tuple[str, ...]:
    """Returns the names of all formats."""
    return tuple(FORMATS)


def find(name: str) -> Write:
    """Returns the function of a format. Raises BadOption for an unknown name."""
    if name not in FORMATS:
        raise BadOption(f"There is no format {name!r} of a query's result: choose one of {', '.join(FORMATS)}.")
    write: Write = import_module(f"{__name__}.{FORMATS[name]}").FORMAT
    return write
