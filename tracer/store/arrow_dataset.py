# SPDX-License-Identifier: Apache-2.0
"""The selected files of one table as an Arrow dataset. It reads columns and row groups when they are asked for."""

from __future__ import annotations

from typing import Any

from tracer.analysis.table_schema import NODE
from tracer.store.bucket import Bucket
from tracer.store.selected_files import SelectedFiles
from tracer.store.stored_tables import arrow_schema
from tracer.util.optional import require_optional


def make(bucket: Bucket, files: SelectedFiles, table: str) -> Any:
    """Makes it; an empty Arrow table where there are no files.

    A column that a file of an older version lacks is NULL. The node comes from the path.
    """
    arrow: Any = require_optional("pyarrow", "a store")
    dataset: Any = require_optional("pyarrow.dataset", "a store")
    schema = arrow_schema(arrow, table).append(arrow.field(NODE.name, arrow.string()))
    if not files.tables[table]:
        return schema.empty_table()
    in_path = arrow.schema([("date", arrow.string()), ("hour", arrow.string()), ("node", arrow.string())])
    return dataset.dataset(
        [bucket.full(each.path) for _, each in files.tables[table]],
        schema=schema,
        format="parquet",
        filesystem=bucket.filesystem,
        partitioning=dataset.HivePartitioning(in_path, segment_encoding="uri"),
        partition_base_dir=bucket.full(table),
    )
