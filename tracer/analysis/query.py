"""SQL over a capture: its packets become Parquet in a scratch directory, and DuckDB asks that. Nothing is held in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracer.analysis.libraries import need
from tracer.analysis.rows import COLUMNS
from tracer.analysis.table import Table
from tracer.errors import BadOption

MOST_ROWS = 100_000
"""Of an answer that is shown."""


def ask(directory: Path, sql: str) -> Table:
    """The answer to one question. directory: as `export --to parquet` fills it. Raises BadOption with DuckDB's words."""
    duckdb: Any = need("duckdb", "query")
    with duckdb.connect() as connection:
        for name in COLUMNS:
            source = _quoted(directory / f"{name}.parquet")
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet({source})")
        # What does not fit into memory while it is sorted goes beside them.
        connection.execute(f"SET temp_directory = {_quoted(directory)}")
        try:
            answer = connection.execute(sql)
            columns = tuple(column[0] for column in answer.description or ())
            rows = answer.fetchmany(MOST_ROWS)
        except duckdb.Error as e:
            raise BadOption(f"DuckDB: {str(e).partition(chr(10))[0].rstrip('.')}.") from e
    return Table("", columns, [tuple(_shown(value) for value in row) for row in rows])


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _shown(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else "" if value is None else str(value)
