# SPDX-License-Identifier: Apache-2.0
"""The tables of a store: those of captures (tracer/analysis/tables) with columns of origin, and the rules in force.

The version of the schema is in the metadata and in the name of each file. A version may add columns: where an older file lacks
one, it is NULL. A file of a newer version is not read.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tracer.analysis import arrow_columns
from tracer.analysis.table_schema import BIGINT, NODE, TIMESTAMP, VARCHAR, Column, ColumnType, TableSchema
from tracer.analysis.tables import tables

VERSION = 1
"""Version of the schema. Raised with each change; only columns may be added."""
VERSION_KEY = b"k8snet-trace.store"
"""Key of the version in a file's metadata."""
RULESETS = "rulesets"


def _filled_elsewhere(source: object) -> None:
    """The writer gives the value."""


ORIGIN: tuple[Column[object], ...] = (
    Column("run", VARCHAR, "The run that wrote the row: numbers of packets, connections and SYNs are unique in it",
           _filled_elsewhere),
    Column("event_at", TIMESTAMP, "Time of the event, UTC, which is also that of `date` and `hour`", _filled_elsewhere, "us"),
)  # fmt: skip
"""Columns that every table begins with. `date`, `hour` and `node` are in the path."""
MORE: dict[str, tuple[Column[object], ...]] = {
    "packets": (
        Column("explained", VARCHAR, "The whole packet with hops, rules and owners, as JSON; `k8snet-trace recall` shows it",
               _filled_elsewhere),
    ),
    "rule_hits": (
        Column("ruleset", VARCHAR, "`rulesets.ruleset`: the rules of this table that were in force; NULL: they were not read",
               _filled_elsewhere),
    ),
}  # fmt: skip
"""Columns that follow those of a table."""
RULESET_COLUMNS: tuple[Column[object], ...] = (
    Column("ruleset", VARCHAR, "Digest of the rules: equal rules of one namespace have the same one", _filled_elsewhere),
    Column("netns", VARCHAR, "Network namespace of the rules", _filled_elsewhere),
    Column("backend", VARCHAR, "legacy or nft", _filled_elsewhere),
    Column("generation", VARCHAR, "Generation of the rules, of the first packet that met them in this hour", _filled_elsewhere),
    Column("nf_family", VARCHAR, "Family of the table: ip, ip6, inet, bridge, netdev", _filled_elsewhere),
    Column("nf_table", VARCHAR, "The table", _filled_elsewhere),
    Column("rules", BIGINT, "Number of rules", _filled_elsewhere),
    Column("kept_rules", BIGINT, "Number of rules in `rule_text`: less than `rules` if the text would be too long",
           _filled_elsewhere),
    Column("rule_text", VARCHAR, "All rules of the table, a line each: `:CHAIN POLICY`, `-A CHAIN RULE`", _filled_elsewhere),
)  # fmt: skip


@cache
def names() -> tuple[str, ...]:
    """Returns the names of all tables."""
    return (*tables(), RULESETS)


def columns(table: str) -> tuple[Column[Any], ...]:
    """The columns that a file of a table has."""
    if table == RULESETS:
        return (*ORIGIN, *RULESET_COLUMNS)
    schema: TableSchema[Any] = tables()[table]
    return (*ORIGIN, *schema.columns, *MORE.get(table, ()))


def arrow_schema(arrow: Any, table: str) -> Any:
    """The Arrow schema of a file of a table. arrow: the module pyarrow."""
    fields = [arrow.field(column.name, arrow_columns.arrow_type(arrow, column.type)) for column in columns(table)]
    return arrow.schema(fields, {VERSION_KEY: str(VERSION).encode()})


def column_types(table: str) -> dict[str, ColumnType]:
    """The columns of a table as a query sees them: `node` first, which is in the path of a file."""
    return {column.name: column.type for column in (NODE, *columns(table))}
