# SPDX-License-Identifier: Apache-2.0
"""SQL queries of a capture: its packets become Parquet files in a scratch directory, then tables of a DuckDB file there.

Nothing is kept in memory. A query reads only these tables: DuckDB must not open other files, the network or extensions.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from tracer.analysis.result_table import ResultTable
from tracer.analysis.rows import COLUMNS
from tracer.errors import BadOption
from tracer.pipeline.shutdown import StopRequest
from tracer.util.optional import require_optional

MOST_ROWS = 100_000
"""Maximum number of rows of a result that are shown."""
POLL_SECONDS = 0.1
"""Interval of the checks for Ctrl-C, s."""
LOCKED = (
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "enable_external_access = false",
    "lock_configuration = true",
)
"""DuckDB settings that restrict a query. The last one locks the others."""


def ask(directory: Path, sql: str, stop: StopRequest | None = None) -> ResultTable:
    """Runs one query.

    Args:
        directory: The output of `export --to parquet`.
        sql: The query.
        stop: Whether the user wants to stop.

    Raises:
        BadOption: DuckDB's error message.
        KeyboardInterrupt: The user stopped the query.
    """
    duckdb: Any = require_optional("duckdb", "query")
    with duckdb.connect(directory / "capture.duckdb") as connection:
        for name in COLUMNS:
            source = _quoted(directory / f"{name}.parquet")
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM read_parquet({source})")
        # DuckDB writes data that does not fit into memory to the same directory.
        connection.execute(f"SET temp_directory = {_quoted(directory)}")
        for setting in LOCKED:
            connection.execute(f"SET {setting}")
        try:
            columns, rows = _answer(connection, sql, stop or StopRequest())
        except duckdb.Error as e:
            raise BadOption(f"DuckDB: {str(e).partition(chr(10))[0].rstrip('.')}.") from e
    return ResultTable("", columns, [tuple(_shown(value) for value in row) for row in rows])


def _answer(connection: Any, sql: str, stop: StopRequest) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Returns columns and rows. DuckDB runs in another thread, because Python handles no signal inside a library call."""

    def work() -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        answer = connection.execute(sql)
        return tuple(column[0] for column in answer.description or ()), answer.fetchmany(MOST_ROWS)

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


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _shown(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else "" if value is None else str(value)
