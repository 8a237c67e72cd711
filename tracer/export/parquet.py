# SPDX-License-Identifier: Apache-2.0
"""The Parquet export: a directory with a file for each table of tracer/analysis/tables, for DuckDB, pandas and Spark.

Each table begins with the column `node`, so that the tables of several captures can be read together.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tracer.analysis import arrow_columns
from tracer.analysis.connection_totals import OpenConnections
from tracer.analysis.table_schema import NODE, Value, text
from tracer.analysis.tables import tables
from tracer.analysis.tables.losses import DatedLoss
from tracer.export import CaptureInfo, Export, ExportOptions
from tracer.model.finding import Finding
from tracer.model.handshake import HandshakeVerdict
from tracer.model.loss import Loss
from tracer.model.packet import Packet
from tracer.model.summary import RunSummary
from tracer.model.timeline import Timeline
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
        self._node = text(about.host)
        self._offset, self._connections, self._tables = about.clock_offset, OpenConnections(), tables()
        metadata = {"k8snet-trace.host": about.host, "k8snet-trace.kernel": about.kernel, "k8snet-trace.options": about.options}
        self._schemas = {
            name: self._arrow.schema([arrow_columns.field(self._arrow, c) for c in (NODE, *table.columns)], metadata)
            for name, table in self._tables.items()
        }
        try:
            self._files = {name: open(fresh(f"{name}.parquet", directory), "wb") for name in self._schemas}  # noqa: SIM115  # close()
        finally:
            os.close(directory)
        self._writers = {
            name: files.ParquetWriter(self._files[name], schema, compression="zstd") for name, schema in self._schemas.items()
        }
        self._rows: dict[str, list[tuple[Value, ...]]] = {name: [] for name in self._schemas}

    def packet(self, packet: Packet) -> None:
        self._connections.feed(packet)
        self._add(packet)

    def finding(self, finding: Finding) -> None:
        self._add(finding)

    def syn(self, verdict: HandshakeVerdict) -> None:
        self._add(verdict)

    def connection(self, timeline: Timeline) -> None:
        totals = self._connections.close(timeline)
        if totals:
            self._add(totals)

    def loss(self, loss: Loss) -> None:
        self._add(DatedLoss(loss, self._offset))

    def close(self, summary: RunSummary) -> None:
        for difference in summary.differences:
            self._add(difference)
        for name, writer in self._writers.items():
            self._flush(name)
            writer.close()
            self._files[name].close()

    def _add(self, read: object) -> None:
        """Adds the rows of every table that is made of objects of this class."""
        for name, table in self._tables.items():
            if table.reads is type(read):
                kept = self._rows[name]
                kept += [(self._node, *row) for row in table.rows(read)]
                if len(kept) >= GROUP:
                    self._flush(name)

    def _flush(self, name: str) -> None:
        kept = self._rows[name]
        if kept:
            schema = self._schemas[name]
            columns = zip(zip(*kept, strict=True), schema, strict=True)
            arrays = [arrow_columns.array(self._arrow, values, field.type) for values, field in columns]
            self._writers[name].write_table(self._arrow.table(arrays, schema=schema))
            kept.clear()


EXPORT = Parquet
