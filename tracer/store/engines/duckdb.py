# SPDX-License-Identifier: Apache-2.0
"""DuckDB, in this process: reads the files where they are, and of them only the columns and row groups that the query needs.

DuckDB itself opens no file and no connection: it gets the rows from pyarrow, and its settings are locked as for a capture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tracer.analysis import sql as asking
from tracer.analysis.formats import QueryResult
from tracer.pipeline.shutdown import StopRequest
from tracer.store import arrow_dataset
from tracer.store.bucket import Bucket
from tracer.store.selected_files import SelectedFiles, StoreSelection
from tracer.store.stored_tables import column_types
from tracer.util.optional import require_optional


@contextmanager
def _opened(
    bucket: Bucket, files: SelectedFiles, selection: StoreSelection, scratch: Path, stop: StopRequest
) -> Iterator[Callable[[str], QueryResult]]:
    """A block with a function that runs one query.

    The function raises:
        BadQuery: DuckDB refuses the query, or a file cannot be read.
        UnknownTable: The query names a table or a column that does not exist.
        KeyboardInterrupt: The user stopped the query.
    """
    duckdb: Any = require_optional("duckdb", "query")
    condition = selection.condition()
    where = f" WHERE {condition}" if condition else ""
    with duckdb.connect(":memory:") as connection:
        for table in files.tables:
            connection.register(f"{table}_files", arrow_dataset.make(bucket, files, table))
            listed = ", ".join(column_types(table))
            connection.execute(f"CREATE VIEW {table} AS SELECT {listed} FROM {table}_files{where}")
        asking.lock(connection, scratch)
        yield lambda sql: asking.answer(connection, sql, stop, tuple(files.tables))


ENGINE = _opened
