# SPDX-License-Identifier: Apache-2.0
"""The saved queries on each engine that is installed: the same SQL, equal rows. `make fleet` installs all of them."""

from __future__ import annotations

import importlib.util
import lzma
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

from tests.support.fleet_check import Answers, answers_of
from tracer.cli import main, store_commands
from tracer.errors import BadOption, BadQuery
from tracer.pipeline.shutdown import StopRequest
from tracer.store import engines
from tracer.store.bucket import Bucket
from tracer.store.selected_files import StoreSelection, select

REAL = Path(__file__).resolve().parents[2] / "data/real"
NEEDS = {"spark": "pyspark", "clickhouse": "chdb"}


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Bucket:
    directory = tmp_path_factory.mktemp("engines")
    for name in ("B", "H"):
        capture = directory / f"{name}.k8st"
        capture.write_bytes(lzma.decompress((REAL / f"{name}.k8st.xz").read_bytes()))
        with pytest.raises(SystemExit) as e:
            main.main(["store", str(capture), f"file://{directory}/s", "--node", f"node {name}"])
        assert not e.value.code
    return Bucket(f"file://{directory}/s")


@pytest.fixture(scope="module")
def expected(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return answers_of(bucket, "duckdb", tmp_path_factory.mktemp("duckdb"))


@pytest.mark.parametrize("engine", sorted(NEEDS))
def test_engines_give_equal_rows(bucket: Bucket, expected: Answers, tmp_path: Path, engine: str) -> None:
    if not importlib.util.find_spec(NEEDS[engine]):
        pytest.skip(f"{NEEDS[engine]} is not installed: `make fleet` installs it")
    if engine == "spark" and not shutil.which("java"):
        pytest.skip("Java is not installed: apt-get install default-jre-headless")
    found = answers_of(bucket, engine, tmp_path)
    assert {name for name in expected if found[name] != expected[name]} == set()
    assert sum(len(rows) for _, rows in found.values()) > 100


SINCE, UNTIL = "2026-11-22T17:36:08.926001", "2026-11-22T17:36:10.5"
"""Of the packets of node B 3 are in this time, one is some ms earlier."""


@pytest.mark.parametrize("engine", engines.names())
def test_each_engine_selects_by_microseconds(bucket: Bucket, tmp_path: Path, engine: str) -> None:
    if engine in NEEDS and (not importlib.util.find_spec(NEEDS[engine]) or (engine == "spark" and not shutil.which("java"))):
        pytest.skip("not installed: `make fleet` installs it")
    selection = StoreSelection(store_commands.moment(SINCE, 0), store_commands.moment(UNTIL, 0))
    with engines.find(engine)(bucket, select(bucket, selection), selection, tmp_path, StopRequest()) as ask:
        result = ask("SELECT COUNT(*) AS n, MIN(event_at) AS first FROM packets")
    assert result.rows == [(3, "2026-11-22 17:36:08.926781")]


@pytest.mark.parametrize("engine", engines.names())
def test_what_an_engine_refuses_is_one_sentence(bucket: Bucket, tmp_path: Path, engine: str) -> None:
    if engine in NEEDS and (not importlib.util.find_spec(NEEDS[engine]) or (engine == "spark" and not shutil.which("java"))):
        pytest.skip("not installed: `make fleet` installs it")
    selection = StoreSelection(nodes=("none",))
    with engines.find(engine)(bucket, select(bucket, selection), selection, tmp_path, StopRequest()) as ask:
        with pytest.raises(BadQuery) as e:
            ask("SELEKT 1")
        assert "\n" not in str(e.value) and "refuses the query" in str(e.value)
        assert ask("SELECT COUNT(*) AS n FROM packets").rows == [(0,)], "a table without files"


def test_the_names_of_the_help_are_the_engines() -> None:
    assert engines.names() == store_commands.ENGINES and engines.DEFAULT in engines.names()
    with pytest.raises(BadOption):
        engines.find("oracle")
