# SPDX-License-Identifier: Apache-2.0
"""Columns of tables as Arrow fields and arrays, for every writer of Parquet.

Times are UTC without a time zone, in us: with a zone DuckDB and pandas need a further library, and Spark reads no ns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracer.analysis.table_schema import Column, ColumnType, Value
from tracer.util.escape import escaped


def field(arrow: Any, column: Column[Any]) -> Any:
    """The Arrow field of a column, with its meaning and unit. arrow: the module pyarrow."""
    return arrow.field(column.name, arrow_type(arrow, column.type), metadata={"meaning": column.meaning, "unit": column.unit})


def arrow_type(arrow: Any, kind: ColumnType) -> Any:
    """The Arrow type of a type of column."""
    types = {
        ColumnType.BIGINT: arrow.int64(),
        ColumnType.BOOLEAN: arrow.bool_(),
        ColumnType.TIMESTAMP: arrow.timestamp("us"),
        ColumnType.VARCHAR: arrow.string(),
    }
    return types[kind]


def array(arrow: Any, values: Sequence[Value], kind: Any) -> Any:
    """The values of one column, of Arrow's type `kind`. Values that Arrow refuses are changed: a capture can contain any."""
    try:
        return arrow.array(values, kind)
    except (UnicodeEncodeError, OverflowError, arrow.ArrowInvalid):
        return arrow.array([_storable(value) for value in values], kind)


def _storable(value: Value) -> Value:
    """A text that is no Unicode with escapes; None for a number of more than 64 bits."""
    if isinstance(value, str):
        return value if value.isascii() else escaped(value)
    return value if value is None or -(2**63) <= value < 2**63 else None
