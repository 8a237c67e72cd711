# SPDX-License-Identifier: Apache-2.0
"""ClickHouse as a library (chdb), in this process, from a local copy of the files.

A server reads the store itself: docs/fleet.md.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tracer.analysis.formats import QueryResult
from tracer.analysis.sql import MOST_ROWS, plain
from tracer.analysis.table_schema import ColumnType
from tracer.errors import BadQuery
from tracer.pipeline.shutdown import StopRequest
from tracer.store import local_copy
from tracer.store.bucket import Bucket
from tracer.store.selected_files import SelectedFiles, StoreSelection
from tracer.store.stored_tables import column_types
from tracer.util.optional import require_optional

TYPES = {
    ColumnType.BIGINT: "Nullable(Int64)",
    ColumnType.BOOLEAN: "Nullable(Bool)",
    ColumnType.TIMESTAMP: "Nullable(DateTime64(6, 'UTC'))",
    ColumnType.VARCHAR: "Nullable(String)",
}
SETTINGS = ("SET session_timezone = 'UTC'", "SET input_format_parquet_allow_missing_columns = 1")


@contextmanager
def _opened(
    bucket: Bucket, files: SelectedFiles, selection: StoreSelection, scratch: Path, stop: StopRequest
) -> Iterator[Callable[[str], QueryResult]]:
    """A block with a function that runs one query, and raises BadQuery where ClickHouse refuses it.

    Raises:
        NoLibrary: chdb is not installed.
    """
    sessions: Any = require_optional("chdb.session", "query --engine clickhouse")
    copies = scratch / "clickhouse-files"
    local_copy.make(bucket, files, copies)
    session = sessions.Session(str(scratch / "clickhouse"))
    try:
        for statement in (*SETTINGS, *(_view(table, copies, selection) for table in files.tables)):
            session.query(statement)
        yield lambda sql: _answer(session, sql)
    finally:
        session.close()


def _answer(session: Any, sql: str) -> QueryResult:
    parquet: Any = require_optional("pyarrow.parquet", "a store")
    try:
        answer = session.query(sql.rstrip().rstrip(";"), "Parquet")
    except RuntimeError as e:
        raise BadQuery(_refusal(str(e))) from e
    if answer.has_error():
        raise BadQuery(_refusal(answer.error_message()))
    content = parquet.read_table(io.BytesIO(answer.bytes()))
    rows = list(zip(*(column.to_pylist() for column in content.slice(0, MOST_ROWS).columns), strict=True))
    return QueryResult(tuple(content.column_names), [tuple(map(_value, row)) for row in rows], content.num_rows > MOST_ROWS)


def _view(table: str, copies: Path, selection: StoreSelection) -> str:
    """The statement that makes a table of a query. The node comes from the path."""
    types = column_types(table)
    names = [name for name in types if name != "node"]
    structure = ", ".join(f"{name} {TYPES[types[name]]}" for name in names)
    source = f"file('{_text(str(copies / table))}/*/*.parquet', 'Parquet', '{_text(structure)}')"
    node = "toNullable(decodeURLComponent(extract(_path, '/node=([^/]+)/'))) AS node"
    # Its TIMESTAMP '...' has whole seconds.
    condition = selection.condition(lambda us: f"fromUnixTimestamp64Micro({us}, 'UTC')")
    where = f" WHERE {condition}" if condition else ""
    return f"CREATE VIEW {table} AS SELECT {node}, {', '.join(names)} FROM {source}{where}"


def _text(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "\\'")


def _value(value: Any) -> Any:
    """A value as other engines give it: a text is no bytes, a time has no zone."""
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    return plain(value.replace(tzinfo=None) if getattr(value, "tzinfo", None) else value)


def _refusal(message: str) -> str:
    return f"ClickHouse refuses the query: {message.strip().partition(chr(10))[0][:300].rstrip('.')}."


ENGINE = _opened
