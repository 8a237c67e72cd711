# SPDX-License-Identifier: Apache-2.0
"""Queries in SQL: results, refusals, and what a query cannot reach."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import captures
from tracer.analysis import sql as asking
from tracer.analysis.tables import names

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    return captures.capture(tmp_path / "a.k8st", captures.some_batches(20)).path


def rows(run: Any, *args: str | Path) -> list[dict[str, Any]]:
    status, out, err = run("query", *args, "-o", "json")
    assert status == 0, err
    (table,) = map(json.loads, out.splitlines())
    assert (table["type"], table["title"]) == ("table", "")
    found: list[dict[str, Any]] = table["rows"]
    return found


def test_a_query(run: Any, capture: Path) -> None:
    sql = "SELECT outcome, count(*) AS n, min(dport) AS port FROM packets GROUP BY outcome ORDER BY outcome"
    assert rows(run, capture, sql) == [
        {"outcome": "delivered", "n": 10, "port": 30285}, {"outcome": "dropped", "n": 10, "port": 8080},
    ]  # fmt: skip


def test_every_table_is_there_and_joins(run: Any, capture: Path) -> None:
    assert [row["name"] for row in rows(run, capture, "SHOW TABLES")] == sorted(names())
    counts = {
        name: rows(run, capture, f"SELECT count(*) AS n FROM {name}")[0]["n"] for name in ("packets", "drops", "syns", "losses")
    }
    assert counts == {"packets": 20, "drops": 10, "syns": 20, "losses": 1}
    sql = """
        SELECT count(*) AS n, count(DISTINCT c.connection) AS connections, sum(d.packet) - sum(p.packet) AS difference
        FROM drops d JOIN packets p ON p.packet = d.packet JOIN connections c ON c.connection = p.connection
        JOIN syns s ON s.packet = p.packet AND s.connection = c.connection
    """
    assert rows(run, capture, sql) == [{"n": 10, "connections": 10, "difference": 0}]
    assert rows(run, capture, "SELECT sum(packets) AS n, sum(dropped) AS bad FROM connections") == [{"n": 20, "bad": 10}]
    hits = "SELECT count(*) AS n FROM rule_hits r JOIN hops h ON h.packet = r.packet AND h.hop = r.hop WHERE h.kind = 'table'"
    assert rows(run, capture, hits) == [{"n": 9}]


def test_a_run_that_printed_timelines_has_packets_and_syns(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    follow = captures.capture(tmp_path / "f.k8st", captures.some_batches(20), follow=True).path
    sql = (
        "SELECT (SELECT count(*) FROM packets) AS p, (SELECT count(*) FROM syns) AS s, (SELECT count(*) FROM connections) AS c"
    )
    (found,) = rows(run, follow, sql)
    assert (found["p"], found["s"]) == (20, 20) and found["c"] > 0


def test_filters_choose_the_rows(run: Any, capture: Path) -> None:
    assert rows(run, capture, "SELECT DISTINCT outcome FROM packets", "--drops-only") == [{"outcome": "dropped"}]


def test_columns_of_one_name_are_told_apart(run: Any, capture: Path) -> None:
    assert rows(run, capture, "SELECT 1 AS a, 2 AS a, 3 AS a_2") == [{"a": 1, "a_2": 2, "a_2_2": 3}]


def test_values_that_json_has_no_type_for(run: Any, capture: Path) -> None:
    sql = "SELECT 1.5::DECIMAL(4,2) AS d, 3::DECIMAL(4,2) AS whole, 'inf'::DOUBLE AS i"
    sql += ", DATE '2026-01-31' AS day, [1] AS l, NULL AS n"
    assert rows(run, capture, sql) == [{"d": 1.5, "whole": 3, "i": None, "day": "2026-01-31", "l": "[1]", "n": None}]
    (row,) = rows(run, capture, "SELECT min(seen_at) AS t, min(seen_ns) AS ns FROM packets")
    assert row["t"] == "2001-09-09 01:46:40.000001" and row["ns"] == 10**18 + 1000


def test_rows_that_are_not_shown_are_announced(run: Any, capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MOST_ROWS", 3)
    status, out, err = run("query", capture, "SELECT packet FROM packets", "-o", "csv")
    assert (status, len(out.splitlines())) == (0, 4)
    assert err == "Only the first 3 rows are shown; the export to Parquet has all.\n"


@pytest.mark.parametrize(
    ("sql", "status", "message"),
    [
        ("SELECT * FROM", 25, "DuckDB refuses the query: Parser Error: "),
        ("SELECT nothing(packet) FROM packets", 25, "DuckDB refuses the query: "),
        ("SELECT CAST(netns AS INTEGER) FROM packets", 25, "DuckDB refuses the query: "),
        ("SELECT * FROM acted", 26, f"There is no table 'acted'; the tables are {', '.join(names())}."),
        ("SELECT * FROM work.secrets.here", 26, "There is no table 'work.secrets.here'; the tables are "),
        (
            "SELECT what FROM hops",
            26,
            "There is no column 'what' in the tables of this query; \"DESCRIBE packets\" lists those of one.",
        ),
        ("SELECT hops.what FROM hops", 26, "There is no column 'what' in the tables of this query"),
        ("nothing-such", 2, "There is no saved query 'nothing-such': choose one of "),
    ],
)
def test_a_refused_query_is_one_sentence(run: Any, capture: Path, sql: str, status: int, message: str) -> None:
    found, out, err = run("query", capture, sql)
    assert (found, out, len(err.splitlines())) == (status, "", 1) and err.startswith(f"k8snet-trace: {message}"), err


def test_a_python_variable_is_no_table(run: Any, capture: Path) -> None:
    """DuckDB would take a data frame of the calling program for a table of that name."""
    assert run("query", capture, "SELECT * FROM answer")[0] == 26


OUTSIDE = (
    "SELECT * FROM read_csv('{file}')",
    "SELECT * FROM '{file}'",
    "SELECT * FROM read_text('{file}')",
    "SELECT * FROM read_blob('{file}')",
    "SELECT * FROM read_json('{file}')",
    "SELECT * FROM glob('{place}/*')",
    "COPY packets TO '{place}/out.csv'",
    "COPY packets FROM '{file}'",
    "EXPORT DATABASE '{place}/out'",
    "IMPORT DATABASE '{place}'",
    "ATTACH '{place}/other.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{file}'",
    "SELECT * FROM read_parquet('https://192.0.2.1/x.parquet')",
    "SELECT * FROM 's3://bucket/x.parquet'",
    "SET enable_external_access = true",
    "SET memory_limit = '100GB'",
    "SET python_enable_replacements = true",
    "RESET lock_configuration",
    "SET temp_directory = '{place}'",
    "CREATE PERSISTENT SECRET s (TYPE http)",
)


@pytest.mark.parametrize("sql", OUTSIDE)
def test_a_query_reads_and_writes_nothing_but_the_capture(run: Any, capture: Path, tmp_path: Path, sql: str) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "secret").write_text("a,b\n1,2\n")
    status, out, err = run("query", capture, sql.format(place=place, file=place / "secret"))
    refused = (26, "There is no table ") if sql == "SELECT * FROM '{file}'" else (25, "DuckDB refuses the query: ")
    assert (status, out, len(err.splitlines())) == (refused[0], "", 1) and err.startswith(f"k8snet-trace: {refused[1]}"), err
    assert [p.name for p in place.iterdir()] == ["secret"] and (place / "secret").read_text() == "a,b\n1,2\n"


def test_a_query_larger_than_memory_spills_beside_the_tables(run: Any, capture: Path) -> None:
    """Values that were set before the settings are locked still apply."""
    sql = "SELECT name, value FROM duckdb_settings() WHERE name IN ('temp_directory', 'memory_limit') ORDER BY name"
    memory, place = rows(run, capture, sql)
    assert memory["value"] == "953.6 MiB" and Path(place["value"]).name == "tables"
    sorted_rows = "SELECT count(*) AS n FROM (SELECT i, md5(i::VARCHAR) AS t FROM range(4000000) r(i) ORDER BY t LIMIT 3999999)"
    assert rows(run, capture, sorted_rows) == [{"n": 3_999_999}]


@pytest.mark.parametrize("library", ["pyarrow", "duckdb"])
def test_a_query_without_its_library(run: Any, capture: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    status, out, err = run("query", capture, "SELECT 1")
    assert (status, out) == (
        24,
        "",
    ) and f"needs {library}, which is not installed: in a virtual environment, pip install '.[analysis]' in a checkout" in err
