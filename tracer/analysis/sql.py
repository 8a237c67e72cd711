# SPDX-License-Identifier: Apache-2.0
"""SQL queries of a capture: its tables are Parquet files in a scratch directory, then tables of a DuckDB file there.

DuckDB takes at most MEMORY, and writes what needs more to the same directory. A query reads only these tables: DuckDB must not
open other files, the network, extensions or variables of this program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from tracer.analysis.formats import QueryResult, Value
from tracer.analysis.tables import names
from tracer.errors import BadQuery, UnknownTable
from tracer.pipeline.shutdown import StopRequest
from tracer.util.optional import require_optional

MOST_ROWS = 100_000
"""Maximum number of rows of a result that are shown."""
MEMORY = "1GB"
"""Maximum memory of DuckDB for a query."""
POLL_SECONDS = 0.1
"""Interval of the checks for Ctrl-C, s."""
LOCKED = (
    f"memory_limit = '{MEMORY}'",
    "python_enable_replacements = false",
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "enable_external_access = false",
    "lock_configuration = true",
)
"""DuckDB settings that restrict a query. The last one locks the others."""
_NO_TABLE = re.compile(r"Table with name (.+?) does not exist")
_NO_COLUMN = re.compile(r'Referenced column "(.+?)" not found|does not have a column named "(.+?)"')


def ask(directory: Path, sql: str, stop: StopRequest | None = None) -> QueryResult:
    """Runs one query.

    Args:
        directory: The output of `export --to parquet`.
        sql: The query.
        stop: Whether the user wants to stop.

    Raises:
        BadQuery: DuckDB refuses the query.
        UnknownTable: The query names a table or a column that does not exist.
        KeyboardInterrupt: The user stopped the query.
    """
    duckdb: Any = require_optional("duckdb", "query")
    with duckdb.connect(directory / "capture.duckdb") as connection:
        for name in names():
            source = _quoted(directory / f"{name}.parquet")
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM read_parquet({source})")
        lock(connection, directory)
        return answer(connection, sql, stop or StopRequest(), names())


def lock(connection: Any, scratch: Path) -> None:
    """Restricts a connection: it reads only the tables that it has. scratch: where it may write what needs more memory."""
    connection.execute(f"SET temp_directory = {_quoted(scratch)}")
    for setting in LOCKED:
        connection.execute(f"SET {setting}")


def answer(connection: Any, sql: str, stop: StopRequest, tables: Sequence[str]) -> QueryResult:
    """Runs one query on a connection with these tables.

    Raises:
        BadQuery: DuckDB refuses the query.
        UnknownTable: The query names a table or a column that does not exist.
        KeyboardInterrupt: The user stopped the query.
    """
    duckdb: Any = require_optional("duckdb", "query")
    try:
        columns, rows = _answer(connection, sql, stop)
    except duckdb.Error as e:
        raise _refusal(str(e), tables) from e
    return QueryResult(_distinct(columns), [tuple(map(plain, row)) for row in rows[:MOST_ROWS]], len(rows) > MOST_ROWS)


def _answer(connection: Any, sql: str, stop: StopRequest) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Returns columns and rows. DuckDB runs in another thread, because Python handles no signal inside a library call."""

    def work() -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        answer = connection.execute(sql)
        return tuple(column[0] for column in answer.description or ()), answer.fetchmany(MOST_ROWS + 1)

    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(work)
        try:
            while not wait([found], POLL_SECONDS).done:
                if stop.is_requested:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            connection.interrupt()
            raise
        return found.result()


def _refusal(message: str, tables: Sequence[str]) -> BadQuery | UnknownTable:
    """The error for a message of DuckDB, as one sentence."""
    table, column = _NO_TABLE.search(message), _NO_COLUMN.search(message)
    if table:
        name = table[1].strip('"')
        return UnknownTable(f"There is no table {name!r}; the tables are {', '.join(tables)}.")
    if column:
        name = column[1] or column[2]
        return UnknownTable(f'There is no column {name!r} in the tables of this query; "DESCRIBE packets" lists those of one.')
    return BadQuery(f"DuckDB refuses the query: {message.partition(chr(10))[0].rstrip('.')}.")


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _distinct(columns: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the columns, each one once: of equal ones, the later ones get a number."""
    found: list[str] = []
    for name in columns:
        number, given = 1, name
        while given in found:
            number += 1
            given = f"{name}_{number}"
        found.append(given)
    return tuple(found)


def plain(value: Any) -> Value:
    """A value of an engine as a value of a result."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() and value.is_finite() else float(value)
    return value.isoformat(" ") if isinstance(value, datetime) else value.isoformat() if isinstance(value, date) else str(value)
