# SPDX-License-Identifier: Apache-2.0
"""Reserved words of SQL engines that will run the saved queries. DuckDB lists its own (duckdb_keywords).

Spark: sql-ref-ansi-compliance.md, column "ANSI mode"; Trino: language/reserved.md; both as of November 2026.
"""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SPARK = _words(
    """all and any as authorization both case cast check collate column constraint create cross current_date current_time
    current_timestamp current_user distinct else end escape except false fetch filter for foreign from full grant group
    having in inner intersect into is join lateral leading left natural not null on only or order outer overlaps primary
    references right select session_user some table then time to trailing union unique unknown user using when where with"""
)
SPARK_STRICT = _words("anti cross except full inner intersect join lateral left minus natural on right semi union using")
"""Words that Spark does not take as the name of a table, also without ANSI mode."""
TRINO = _words(
    """alter and as auto between by case cast constraint create cross cube current_catalog current_date current_path
    current_role current_schema current_time current_timestamp current_user deallocate delete describe distinct drop else
    end escape except execute exists extract false for from full group grouping having in inner insert intersect into is
    join json_array json_exists json_object json_query json_table json_value left like listagg localtime localtimestamp
    natural normalize not null on or order outer prepare primary recursive right rollup select skip table then trim true
    uescape union unnest using values when where with"""
)
