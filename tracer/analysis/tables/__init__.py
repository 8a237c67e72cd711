# SPDX-License-Identifier: Apache-2.0
"""The tables of a capture, for Parquet and SQL. Each table is one file of this package, found by its file name.

Its `TABLE` is a `TableSchema`: what it is made of, and its columns with type, unit, meaning and value. The data dictionary in
docs/sql.md is made of them (tracer/analysis/dictionary.py).

Must not know: Arrow, DuckDB, the format of a capture file, other tables.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from tracer.util.registry import Registry

if TYPE_CHECKING:
    from tracer.analysis.table_schema import TableSchema

_TABLES: Registry[TableSchema[Any]] = Registry(__name__, "TABLE", kind="table")


@cache
def names() -> tuple[str, ...]:
    """Returns the names of all tables."""
    return _TABLES.names()


@cache
def tables() -> dict[str, TableSchema[Any]]:
    """Returns all tables by name."""
    return dict(_TABLES.entries())
