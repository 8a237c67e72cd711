# SPDX-License-Identifier: Apache-2.0
"""Hours of a store as tables of Iceberg: equal answers to the saved queries, each row once, whoever writes and whenever."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")
pytest.importorskip("pyiceberg.catalog.sql")
pytest.importorskip("sqlalchemy")

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

from tests.support import known_capture
from tests.support.store_rows import NIGHT, local, losses
from tracer.analysis import queries
from tracer.analysis import sql as asking
from tracer.errors import BadOption, NoLibrary, StoreUnreachable
from tracer.pipeline.shutdown import StopRequest
from tracer.store import engines, iceberg
from tracer.store.bucket import Bucket
from tracer.store.partition import HOUR_US
from tracer.store.selected_files import StoreSelection, select
from tracer.store.store_writer import StoreWriter
from tracer.store.stored_tables import column_types, names

ROOT = Path(__file__).resolve().parents[3]
LATER = NIGHT + 10 * HOUR_US


def catalog(place: Path) -> SqlCatalog:
    """A connection to the catalogue of a directory."""
    return SqlCatalog("c", uri=f"sqlite:///{place}/catalog.db", warehouse=f"file://{place}/warehouse")


def fill(bucket: Bucket, place: Path, node: str, count: int, first: int = 0) -> None:
    writer = StoreWriter(bucket, place / f"spool-{node.replace('/', '-')}", node, has_thread=False)
    writer.add(losses(count, first))
    writer.close(1)


def lost(place: Path) -> list[tuple[str, int]]:
    """Node and value of each row of `losses` in Iceberg."""
    rows = catalog(place).load_table("traces.losses").scan().to_arrow().to_pylist()
    return sorted((row["node"], row["lost"]) for row in rows)


def test_the_saved_queries_give_equal_rows(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.0001)
    bucket, capture = local(tmp_path / "s"), known_capture.make(tmp_path / "known.k8st")
    for node in ("node-a", "rack 1/node=é"):
        assert run("store", capture, bucket.url, "--node", node)[0] == 0
    done = iceberg.publish(bucket, catalog(tmp_path), "traces", LATER, 2)
    assert done.replaced > 10 and done.conflicts == 0
    duckdb: Any = pytest.importorskip("duckdb")
    whole, stop, everything = catalog(tmp_path), StopRequest(), StoreSelection()
    there = {name for _, name in whole.list_tables("traces")}
    files = select(bucket, everything)
    compared = 0
    with duckdb.connect(":memory:") as connection:
        for table in names():
            if table in there:
                connection.register(f"{table}_rows", whole.load_table(f"traces.{table}").scan().to_arrow())
                connection.execute(f"CREATE VIEW {table} AS SELECT {', '.join(column_types(table))} FROM {table}_rows")
            else:
                kinds = ", ".join(f"NULL::{kind.value} AS {name}" for name, kind in column_types(table).items())
                connection.execute(f"CREATE VIEW {table} AS SELECT {kinds} WHERE false")
        with engines.find("duckdb")(bucket, files, everything, tmp_path, stop) as ask:
            for name in queries.names():
                sql = queries.sql_of(name, ())
                expected, found = ask(sql), asking.answer(connection, sql, stop, names())
                assert [tuple(row) for row in found.rows] == [tuple(row) for row in expected.rows], name
                compared += bool(expected.rows)
    assert compared > 10


def test_a_second_run_writes_nothing_and_later_rows_replace_their_hour(tmp_path: Path) -> None:
    bucket = local(tmp_path / "s")
    fill(bucket, tmp_path, "a", 3)
    fill(bucket, tmp_path, "b", 2)
    assert iceberg.publish(bucket, catalog(tmp_path), "traces", LATER, 2) == iceberg.PublishedHours(2, 0, 5, 0)
    assert iceberg.publish(bucket, catalog(tmp_path), "traces", LATER, 2) == iceberg.PublishedHours(0, 2, 0, 0)
    fill(bucket, tmp_path, "a", 1, first=3)
    assert iceberg.publish(bucket, catalog(tmp_path), "traces", LATER, 2) == iceberg.PublishedHours(1, 1, 4, 0)
    assert lost(tmp_path) == [("a", 0), ("a", 1), ("a", 2), ("a", 3), ("b", 0), ("b", 1)]


def test_an_hour_that_is_not_over_is_left_out(tmp_path: Path) -> None:
    bucket = local(tmp_path / "s")
    fill(bucket, tmp_path, "a", 3)
    hour = NIGHT // HOUR_US * HOUR_US
    assert iceberg.publish(bucket, catalog(tmp_path), "traces", hour + 3 * HOUR_US - 1, 2).replaced == 0
    assert iceberg.publish(bucket, catalog(tmp_path), "traces", hour + 3 * HOUR_US, 2).replaced == 1


def test_expired_snapshots_make_no_row_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = local(tmp_path / "s")
    fill(bucket, tmp_path, "a", 3)
    iceberg.publish(bucket, catalog(tmp_path), "traces", LATER, 2)
    known = iceberg._published
    monkeypatch.setattr(iceberg, "_published", lambda table: {})
    assert iceberg.publish(bucket, catalog(tmp_path), "traces", LATER, 2).replaced == 1
    monkeypatch.setattr(iceberg, "_published", known)
    assert lost(tmp_path) == [("a", 0), ("a", 1), ("a", 2)]


@pytest.mark.parametrize("is_same", [True, False])
def test_another_writer_commits_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same: bool) -> None:
    """One that did the same work: its commit is found, and nothing is written twice. One of another node: both are there."""
    mine, others = local(tmp_path / "mine"), local(tmp_path / "others")
    fill(mine, tmp_path, "a", 3)
    fill(others, tmp_path, "b", 2)
    commit, pending = iceberg._commit, [mine if is_same else others]

    def first_the_other(*given: Any) -> None:
        if pending:
            iceberg.publish(pending.pop(), catalog(tmp_path), "traces", LATER, 2)
        commit(*given)

    monkeypatch.setattr(iceberg, "_commit", first_the_other)
    done = iceberg.publish(mine, catalog(tmp_path), "traces", LATER, 2, sleep=lambda seconds: None)
    assert (done.replaced, done.rows) == ((0, 0) if is_same else (1, 3)) and done.conflicts <= 1
    assert lost(tmp_path) == [("a", 0), ("a", 1), ("a", 2)] + ([] if is_same else [("b", 0), ("b", 1)])


def test_a_catalogue_that_never_takes_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket, pauses = local(tmp_path / "s"), list[float]()
    fill(bucket, tmp_path, "a", 3)

    def refuses(*given: Any) -> None:
        raise CommitFailedException("Requirement failed: branch main has changed")

    monkeypatch.setattr(iceberg, "_commit", refuses)
    with pytest.raises(StoreUnreachable, match="20 times another writer was faster"):
        iceberg.publish(bucket, catalog(tmp_path), "traces", LATER, 2, sleep=pauses.append)
    assert len(pauses) == iceberg.ATTEMPTS and max(pauses) <= iceberg.LONGEST_PAUSE_SECONDS


def test_many_writers_at_once(tmp_path: Path) -> None:
    """Six writers with stores of their own, and two of each: every row is there once."""
    buckets = []
    for number in range(3):
        buckets.append(local(tmp_path / f"s{number}"))
        fill(buckets[-1], tmp_path, f"node-{number}", 5)
    catalog(tmp_path).create_namespace("traces")
    iceberg._table(catalog(tmp_path), "traces", "losses")
    errors: list[BaseException] = []

    def work(bucket: Bucket) -> None:
        try:
            iceberg.publish(bucket, catalog(tmp_path), "traces", LATER, 2)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(bucket,)) for bucket in buckets * 2]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert errors == [] and lost(tmp_path) == [(f"node-{n}", value) for n in range(3) for value in range(5)]


def test_a_column_of_a_later_version_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = local(tmp_path / "s")
    fill(bucket, tmp_path, "a", 3)
    whole = column_types("losses")
    with monkeypatch.context() as patch:
        patch.setattr(iceberg, "column_types", lambda table: {n: k for n, k in whole.items() if n != "reason"})
        iceberg.publish(bucket, catalog(tmp_path), "traces", LATER, 2)
    fill(bucket, tmp_path, "a", 1, first=3)
    iceberg.publish(bucket, catalog(tmp_path), "traces", LATER, 2)
    rows = catalog(tmp_path).load_table("traces.losses").scan().to_arrow().to_pylist()
    assert [row["reason"] for row in rows] == ["x"] * 4


def test_the_command(tmp_path: Path) -> None:
    bucket = local(tmp_path / "s")
    fill(bucket, tmp_path, "a", 3)
    environment = os.environ | {
        "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
        "PYICEBERG_CATALOG__LAKE__URI": f"sqlite:///{tmp_path}/catalog.db",
        "PYICEBERG_CATALOG__LAKE__WAREHOUSE": f"file://{tmp_path}/warehouse",
    }
    command = [sys.executable, "-m", "tracer", "compact", bucket.url, "--iceberg", "lake.traces", "--after", "0"]
    # The rows are of a later day than this one: their hour is never over for the real clock.
    code = f"import time; time.time_ns = lambda: {LATER * 1000}; import runpy, sys; sys.argv = {command[2:]!r}; "
    code += "runpy.run_module('tracer', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == (
        "lake.traces: 1 parts of an hour written, 3 rows; 0 were there already; 0 commits of others came first."
    )
    found = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/warehouse")
    assert found.load_table("traces.losses").scan().to_arrow().num_rows == 3


def test_wrong_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("lake", ".traces", "lake."):
        with pytest.raises(BadOption, match=r"is not CATALOG\.NAMESPACE"):
            iceberg.open_catalog(text)
    with pytest.raises(BadOption, match="The catalogue no-such-one cannot be used"):
        iceberg.open_catalog("no-such-one.traces")
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(NoLibrary, match=r"pip install '\.\[iceberg\]'"):
        iceberg.open_catalog("lake.traces")
