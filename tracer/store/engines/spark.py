# SPDX-License-Identifier: Apache-2.0
"""Spark (pyspark, with a Java runtime), in local mode: on this machine's processors, from a local copy of the files.

A cluster reads the store itself: docs/fleet.md.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tracer.analysis.formats import QueryResult
from tracer.analysis.sql import MOST_ROWS, plain
from tracer.analysis.table_schema import ColumnType
from tracer.errors import BadQuery, NoLibrary
from tracer.pipeline.shutdown import StopRequest
from tracer.store import local_copy
from tracer.store.bucket import Bucket
from tracer.store.selected_files import SelectedFiles, StoreSelection
from tracer.store.stored_tables import column_types
from tracer.util.optional import require_optional

TYPES = {
    ColumnType.BIGINT: "BIGINT",
    ColumnType.BOOLEAN: "BOOLEAN",
    ColumnType.TIMESTAMP: "TIMESTAMP_NTZ",
    ColumnType.VARCHAR: "STRING",
}
MEMORY = "2g"
LOGGING = """rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %m%n
"""
"""Spark's messages: errors only."""


@contextmanager
def _opened(
    bucket: Bucket, files: SelectedFiles, selection: StoreSelection, scratch: Path, stop: StopRequest
) -> Iterator[Callable[[str], QueryResult]]:
    """A block with a function that runs one query, and raises BadQuery where Spark refuses it.

    Raises:
        NoLibrary: pyspark or Java is not there.
    """
    pyspark_sql: Any = require_optional("pyspark.sql", "query --engine spark")
    if not (shutil.which("java") or os.environ.get("JAVA_HOME")):
        raise NoLibrary("query --engine spark needs Java, which is not installed: apt-get install default-jre-headless.")
    copies = scratch / "spark-files"
    local_copy.make(bucket, files, copies)
    session = _session(pyspark_sql, scratch)
    condition = selection.condition()
    try:
        for table in files.tables:
            types = ", ".join(f"`{name}` {TYPES[kind]}" for name, kind in column_types(table).items())
            frame = session.read.schema(types).option("basePath", str(copies / table)).parquet(str(copies / table))
            (frame.where(condition) if condition else frame).createOrReplaceTempView(table)
        yield lambda sql: _answer(session, sql)
    finally:
        session.stop()


def _answer(session: Any, sql: str) -> QueryResult:
    try:
        answer = session.sql(sql)
        rows = answer.limit(MOST_ROWS + 1).collect()
    except Exception as e:
        if not type(e).__module__.startswith(("pyspark", "py4j")):
            raise
        raise BadQuery(f"Spark refuses the query: {str(e).strip().partition(chr(10))[0][:300].rstrip('.')}.") from e
    return QueryResult(tuple(answer.columns), [tuple(map(plain, row)) for row in rows[:MOST_ROWS]], len(rows) > MOST_ROWS)


def _session(pyspark_sql: Any, scratch: Path) -> Any:
    """A session that listens on this machine only, writes below the scratch directory, and counts in UTC."""
    logging = scratch / "log4j2.properties"
    logging.write_text(LOGGING, encoding="utf-8")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": MEMORY,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.local.dir": str(scratch),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging}",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = pyspark_sql.SparkSession.builder.master("local[*]").appName("k8snet-trace")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


ENGINE = _opened
