# SPDX-License-Identifier: Apache-2.0
"""Output formats of a query's result. Each format is one file of this package, found by its file name.

Its `FORMAT(result, out)` writes the result. Texts come from packets, rules and objects, so every format escapes control
characters, and what its readers would act on: formulas in CSV, markup in Markdown.

Must not know: DuckDB, the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TextIO, TypeAlias

from tracer.util.registry import Registry

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
FIRST = ("table", "csv", "json", "markdown")
_FORMATS: Registry[Write] = Registry(__name__, "FORMAT", kind="format of a query")


@cache
def names() -> tuple[str, ...]:
    """Returns the names of all formats, the usual one first."""
    found = _FORMATS.names()
    return (*(n for n in FIRST if n in found), *(n for n in found if n not in FIRST))


def find(name: str) -> Write:
    """Returns the function of a format. Raises BadOption for an unknown name."""
    return _FORMATS.find(name)
