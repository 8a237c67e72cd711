# SPDX-License-Identifier: Apache-2.0
"""SQL over a capture: its packets become Parquet in a scratch directory, then tables of a DuckDB file there, which is asked.

Nothing is held in memory. A question reads these tables alone: DuckDB may open no other file, no network, no extension.
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
"""Of an answer that is shown."""
LOOK_SECONDS = 0.1
"""How often it is looked whether Ctrl-C was pressed."""
LOCKED = (
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "enable_external_access = false",
    "lock_configuration = true",
)
"""What a question may do, which it cannot change: the last one locks the others."""


def ask(directory: Path, sql: str, stop: StopRequest | None = None) -> ResultTable:
    """The answer to one question. directory: as `export --to parquet` fills it.

    Raises BadOption with DuckDB's words; KeyboardInterrupt when it was asked to end.
    """
    duckdb: Any = require_optional("duckdb", "query")
    with duckdb.connect(directory / "capture.duckdb") as connection:
        for name in COLUMNS:
            source = _quoted(directory / f"{name}.parquet")
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM read_parquet({source})")
        # What does not fit into memory while it is sorted goes beside them.
        connection.execute(f"SET temp_directory = {_quoted(directory)}")
        for setting in LOCKED:
            connection.execute(f"SET {setting}")
        try:
            columns, rows = _answer(connection, sql, stop or StopRequest())
        except duckdb.Error as e:
            raise BadOption(f"DuckDB: {str(e).partition(chr(10))[0].rstrip('.')}.") from e
    return ResultTable("", columns, [tuple(_shown(value) for value in row) for row in rows])


def _answer(connection: Any, sql: str, stop: StopRequest) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
    """Columns and rows. DuckDB works in another thread, for Python hears no signal while it waits for a library."""

    def work() -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        answer = connection.execute(sql)
        return tuple(column[0] for column in answer.description or ()), answer.fetchmany(MOST_ROWS)

    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(work)
        try:
            while not wait([found], LOOK_SECONDS).done:
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
