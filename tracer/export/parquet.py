# SPDX-License-Identifier: Apache-2.0
"""The Parquet export: a directory with a file for each table of tracer/analysis/rows.py, for DuckDB, pandas and Spark.

Times are UTC without a time zone. With a zone, each of these programs would need a further library.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tracer.analysis import rows
from tracer.analysis.rows import Row
from tracer.export import CaptureInfo, Export, ExportOptions
from tracer.model.finding import Finding
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.util.new_file import fresh
from tracer.util.optional import require_optional

DESCRIPTION = "a directory of tables for DuckDB, pandas, Spark"
GROUP = 50_000
"""Number of rows of a table that are kept in memory and written together."""


class Parquet(Export):
    """Writes the rows of each table in groups of GROUP."""

    def __init__(self, target: Path, about: CaptureInfo, options: ExportOptions = ExportOptions()) -> None:  # noqa: B008
        self._arrow: Any = require_optional("pyarrow", "Parquet")
        files: Any = require_optional("pyarrow.parquet", "Parquet")
        target.mkdir(mode=0o700)
        directory = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        arrow = self._arrow
        types = {"timestamp": arrow.timestamp("ns"), "bool": arrow.bool_()}
        metadata = {"k8snet-trace.host": about.host, "k8snet-trace.kernel": about.kernel, "k8snet-trace.options": about.options}
        self._schemas = {
            name: arrow.schema([(c, types[t] if t in types else getattr(arrow, t)()) for c, t in columns.items()], metadata)
            for name, columns in rows.COLUMNS.items()
        }
        try:
            self._files = {name: open(fresh(f"{name}.parquet", directory), "wb") for name in self._schemas}  # noqa: SIM115  # close()
        finally:
            os.close(directory)
        self._writers = {
            name: files.ParquetWriter(self._files[name], schema, compression="zstd") for name, schema in self._schemas.items()
        }
        self._rows: dict[str, list[Row]] = {name: [] for name in rows.COLUMNS}

    def packet(self, packet: Packet) -> None:
        for name, row in rows.of_packet(packet):
            self._add(name, row)

    def finding(self, finding: Finding) -> None:
        self._add("findings", rows.of_finding(finding))

    def _add(self, name: str, row: Row) -> None:
        kept = self._rows[name]
        kept.append(row)
        if len(kept) >= GROUP:
            self._flush(name)

    def _flush(self, name: str) -> None:
        kept = self._rows[name]
        if kept:
            schema = self._schemas[name]
            columns = [self._arrow.array([row.get(c) for row in kept], schema.field(c).type) for c in schema.names]
            self._writers[name].write_table(self._arrow.table(columns, schema=schema))
            kept.clear()

    def close(self, summary: RunSummary) -> None:
        for name, writer in self._writers.items():
            self._flush(name)
            writer.close()
            self._files[name].close()


EXPORT = Parquet
