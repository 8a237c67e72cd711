# SPDX-License-Identifier: Apache-2.0
"""Rows for the tests of the store, and what is in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracer.analysis.table_schema import Value
from tracer.store.bucket import Bucket
from tracer.store.segment import StoredRow
from tracer.store.selected_files import StoreSelection, select
from tracer.store.stored_tables import ORIGIN, columns

NIGHT = 1_795_660_200_000_000
"""2026-11-26T02:30:00Z, us since the epoch."""


def losses(count: int, first: int = 0, at: int = NIGHT) -> list[StoredRow]:
    """Rows of the table `losses`, which differ in `lost`."""
    names = [column.name for column in columns("losses")[len(ORIGIN) :]]

    def values(number: int) -> tuple[Value, ...]:
        given: dict[str, Value] = {"probe": "table", "lost": number, "reason": "x"}
        return tuple(given.get(name) for name in names)

    return [StoredRow("losses", at + n, values(n)) for n in range(first, first + count)]


def stored(bucket: Bucket, table: str = "losses", selection: StoreSelection = StoreSelection()) -> list[dict[str, Any]]:  # noqa: B008
    """The rows of a table of a store."""
    from tracer.store import arrow_dataset

    files = select(bucket, selection, (table,))
    if not files.tables[table]:
        return []
    rows: list[dict[str, Any]] = arrow_dataset.make(bucket, files, table).to_table().to_pylist()
    return rows


def numbers(bucket: Bucket) -> list[int]:
    """The values of `lost`, sorted: each row that `losses` made, once."""
    return sorted(row["lost"] for row in stored(bucket))


def local(directory: Path) -> Bucket:
    """A store in a directory."""
    return Bucket(f"file://{directory}")
