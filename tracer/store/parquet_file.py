# SPDX-License-Identifier: Apache-2.0
"""Parquet files of a store: rows to the bytes of a file, with the version of the schema in its metadata and its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from tracer.analysis import arrow_columns
from tracer.analysis.table_schema import Value
from tracer.errors import NewerCapture
from tracer.store.stored_tables import VERSION, VERSION_KEY, arrow_schema
from tracer.util.optional import require_optional

COMPRESSION_LEVEL = 3
"""Level of zstd: more costs much time, and saves little."""
_NAME = re.compile(r"[\w.-]+\.v(\d{1,6})\.parquet")


def file_name(stem: str) -> str:
    """The name of a file of this version."""
    return f"{stem}.v{VERSION}.parquet"


def check_version(path: str) -> bool:
    """Whether a file is one of a store, by its name.

    Raises:
        NewerCapture: It is of a newer version.
    """
    found = _NAME.fullmatch(path.rpartition("/")[2])
    if not found:
        return False
    if int(found[1]) > VERSION:
        raise NewerCapture(f"{path} was written by a newer k8snet-trace: version {found[1]}, this one reads up to {VERSION}.")
    return True


def encode(table: str, rows: Sequence[tuple[Value, ...]]) -> bytes:
    """The bytes of a file with these rows. Values are in the order of the table's columns."""
    arrow: Any = require_optional("pyarrow", "a store")
    schema = arrow_schema(arrow, table)
    by_column = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [arrow_columns.array(arrow, values, field.type) for values, field in zip(by_column, schema, strict=True)]
    return to_bytes(arrow.table(arrays, schema=schema))


def to_bytes(content: Any) -> bytes:
    """The bytes of a file with an Arrow table."""
    arrow: Any = require_optional("pyarrow", "a store")
    parquet: Any = require_optional("pyarrow.parquet", "a store")
    out = arrow.BufferOutputStream()
    parquet.write_table(content, out, compression="zstd", compression_level=COMPRESSION_LEVEL)
    return cast(bytes, out.getvalue().to_pybytes())


def version_of(metadata: dict[bytes, bytes] | None) -> int:
    """The version in the metadata of a file; 0 = there is none."""
    text = (metadata or {}).get(VERSION_KEY, b"0")
    return int(text) if text.isdigit() else 0
