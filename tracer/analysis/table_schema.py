# SPDX-License-Identifier: Apache-2.0
"""Columns and tables. The name, type, unit and meaning of a column stand beside the function that gives its value.

So the schema of Parquet and SQL, the values and the data dictionary (docs/sql.md) come from one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeAlias, TypeVar

Value: TypeAlias = int | str | None
"""A value of a row; bool is an int. A TIMESTAMP is given in us since the epoch. None = not known, or it does not apply."""
Source = TypeVar("Source")


class ColumnType(StrEnum):
    """The type of a column, by its name in standard SQL."""

    BIGINT = "BIGINT"
    BOOLEAN = "BOOLEAN"
    TIMESTAMP = "TIMESTAMP"
    VARCHAR = "VARCHAR"


BIGINT, BOOLEAN, TIMESTAMP, VARCHAR = ColumnType.BIGINT, ColumnType.BOOLEAN, ColumnType.TIMESTAMP, ColumnType.VARCHAR


@dataclass(frozen=True)
class Column(Generic[Source]):
    """One column.

    Attributes:
        name: Its name; not a reserved word of SQL.
        type: Its type.
        meaning: What it says, for the data dictionary.
        value: Gives the value of a row.
        unit: The unit of a number; "" = none.
    """

    name: str
    type: ColumnType
    meaning: str
    value: Callable[[Source], Value]
    unit: str = ""


@dataclass(frozen=True)
class TableSchema(Generic[Source]):
    """One table.

    Attributes:
        description: What one row is, for the data dictionary.
        reads: The class of what the table is made of: Packet, HandshakeVerdict, Finding ...
        sources: Gives, for one object of that class, an object for each row.
        columns: The columns.
    """

    description: str
    reads: type
    sources: Callable[[Any], Iterable[Source]]
    columns: tuple[Column[Source], ...]

    def rows(self, read: object) -> Iterator[tuple[Value, ...]]:
        """Yields the rows of one object of the class `reads`, with the values in the order of the columns."""
        for source in self.sources(read):
            yield tuple(column.value(source) for column in self.columns)


NODE: Column[object] = Column("node", VARCHAR, "Name of the node; the first column of every table", lambda source: None)
"""The column that a writer of tables fills itself: no packet has the name of its node."""


def text(value: str) -> str | None:
    """The text; None for an empty one, which stands for "not known" in the model."""
    return str(value) if value else None


def number(value: int) -> int | None:
    """The number; None for 0, where 0 stands for "not known" in the model."""
    return value or None


def timestamp(ns: int) -> int | None:
    """ns since the epoch as us; None for 0 = not known. Spark reads no finer timestamps from Parquet."""
    return ns // 1000 if ns else None
