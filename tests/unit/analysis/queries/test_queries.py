# SPDX-License-Identifier: Apache-2.0
"""The saved queries: their answers on a capture with known answers, and on captures of real nodes."""

from __future__ import annotations

import io
import json
import lzma
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support import known_capture
from tracer.analysis import formats, queries
from tracer.analysis import sql as asking
from tracer.analysis.queries import SavedQuery
from tracer.cli import main
from tracer.errors import BadOption

pytest.importorskip("duckdb")
pytest.importorskip("pyarrow")
REAL = Path(__file__).resolve().parents[3] / "data/real"


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.0001)
        return known_capture.make(tmp_path_factory.mktemp("known") / "known.k8st")


def rows(run: Any, capture: Path, name: str, *more: str) -> list[tuple[Any, ...]]:
    status, out, err = run("query", capture, name, "-o", "json", *more)
    assert status == 0, err
    return [tuple(row.values()) for row in json.loads(out)["rows"]]


def test_top_dropped_services(run: Any, known: Path) -> None:
    assert rows(run, known, "top-drops") == [
        (9, "shop", "cart", "http", "NETFILTER_DROP", 9),
        (5, "shop", "orders", None, "NETFILTER_DROP", 3),
        (1, None, None, None, "NO_SOCKET", 1),
    ]
    assert len(rows(run, known, "top-drops", "--param", "most=1")) == 1


def test_p99_of_the_syn_answer_by_service(run: Any, known: Path) -> None:
    """Of 100 answers after 10, 20 ... 1000 us, the 99th is the 99th percentile. SYNs without an answer do not count."""
    assert rows(run, known, "slow-syns") == [
        ("shop", "orders", None, 10, 5, 2.0, 2.0, 2.0),
        ("shop", "cart", "http", 109, 100, 0.5, 0.99, 1.0),
    ]


def test_which_rule_drops_most(run: Any, known: Path) -> None:
    found = rows(run, known, "rules-that-drop")
    assert [row[:3] for row in found] == [(9, "node", "ip filter FORWARD 1"), (3, "node", "ip filter FORWARD 2")]


def test_connections_an_endpoint(run: Any, known: Path) -> None:
    assert rows(run, known, "endpoints") == [
        ("shop", "cart", "cart-a", "10.244.0.11", 8080, 60, 0),
        ("shop", "cart", "cart-b", "10.244.0.12", 8080, 40, 0),
        ("shop", "cart", "cart-gone", "10.244.0.13", 8080, 9, 9),
        ("shop", "orders", "orders-a", "10.244.0.21", 9090, 7, 2),
        ("shop", "orders", "orders-gone", "10.244.0.23", 9090, 3, 3),
    ]


def test_drops_by_reason_over_time(run: Any, known: Path) -> None:
    first, second = "2001-09-09 01:46:00", "2001-09-09 01:47:00"
    assert rows(run, known, "drops-over-time") == [
        (first, "NETFILTER_DROP", 5), (first, "accept queue full", 2), (first, "NO_SOCKET", 1), (second, "NETFILTER_DROP", 7),
    ]  # fmt: skip
    by_hour = rows(run, known, "drops-over-time", "--param", "interval=hour")
    assert by_hour == [("2001-09-09 01:00:00", "NETFILTER_DROP", 12), *(("2001-09-09 01:00:00", *r) for r in
                       (("accept queue full", 2), ("NO_SOCKET", 1)))]  # fmt: skip


def test_other_questions(run: Any, known: Path) -> None:
    assert rows(run, known, "services")[0] == ("shop", "cart", "http", 109, 309, 18540, 9, 9)
    assert rows(run, known, "syn-causes")[:2] == [
        (9, False, "dropped by rule", "observed", "shop", "cart"), (3, False, "dropped by rule", "observed", "shop", "orders"),
    ]  # fmt: skip
    assert rows(run, known, "listeners")[0] == ("pod-a", "nginx (pid 4242)", 9090, 7, 5, 2, 2.0)
    assert sum(row[2] for row in rows(run, known, "outcomes")) == 330


@pytest.fixture(scope="module")
def tables(known: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of the capture, for queries that need no replay of their own."""
    target = tmp_path_factory.mktemp("tables") / "tables"
    with pytest.raises(SystemExit) as e:
        main.main(["export", str(known), "--to", "parquet", str(target)])
    assert not e.value.code
    return target


@pytest.mark.parametrize("name", queries.names())
def test_every_query_runs_in_80_columns(tables: Path, tmp_path: Path, name: str) -> None:
    copied, out = shutil.copytree(tables, tmp_path / "tables"), io.StringIO()
    formats.find("table")(asking.ask(copied, queries.sql_of(name)), out)
    assert out.getvalue() and all(len(line) <= 80 and line == line.rstrip() for line in out.getvalue().splitlines())


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("real") / "B.k8st"
    path.write_bytes(lzma.decompress((REAL / "B.k8st.xz").read_bytes()))
    return path


def test_the_five_questions_on_a_real_node(run: Any, real: Path) -> None:
    """A recorded node of kube-proxy 1.20 with several faults (tests/data/real/B.txt.xz)."""
    top = {row[1:3]: row[0] for row in rows(run, real, "top-drops")}
    assert top[("billing", "ledger-grpc")] == 4 and top[("shop", "checkout")] == 2
    rule = rows(run, real, "rules-that-drop")[0]
    assert (
        rule[:3] == (12, "node", "ip filter KUBE-FIREWALL 1") and rule[3] is None and "--mark 0x8000/0x8000 -j DROP" in rule[4]
    )
    spread = {row[2]: row[5] for row in rows(run, real, "endpoints") if row[1] == "checkout"}
    assert spread == {"checkout-0": 3, "checkout-1": 3}
    assert sum(row[2] for row in rows(run, real, "drops-over-time")) == 21
    answered = {row[1]: row[4] for row in rows(run, real, "slow-syns")}
    assert answered["checkout"] == 5 and answered["ledger-grpc"] == 0


@pytest.mark.parametrize("name", queries.names())
def test_a_saved_query_is_portable(name: str) -> None:
    """SQL that Spark, Trino and ClickHouse understand, too (docs/sql.md)."""
    sql = queries.find(name).filled({})
    duckdb_only = (
        r"::|\bGROUP BY ALL\b|\bQUALIFY\b|\bapprox_|\bquantile|\bFILTER\s*\(|\bEXCLUDE\b|\bILIKE\b|//|\bSTRFTIME\b|\bLIST\b|\""
    )
    assert not re.search(duckdb_only, sql, re.I), "an expression that not every engine has"
    assert not re.search(r"\b(?:GROUP|ORDER) BY\s+\d", sql, re.I), "columns are named, not numbered"
    called = set(re.findall(r"\b([a-z_]+)\(", sql, re.I)) - {"AS", "OVER", "IN", "AND", "OR"}
    assert {word.lower() for word in called} <= {
        "count",
        "sum",
        "min",
        "max",
        "floor",
        "abs",
        "coalesce",
        "row_number",
        "date_trunc",
    }


def test_every_query_has_a_description_and_is_listed(run: Any) -> None:
    status, out, _ = run("query", "--list")
    help_text = run("query", "--help")[1]
    assert status == 0 and len(queries.names()) >= 15
    for name in queries.names():
        assert f"\n{name}\n" in f"\n{out}" and name in help_text
        assert queries.find(name).description.endswith(".")


def test_the_sql_of_a_query_is_shown(run: Any) -> None:
    assert (
        run("query", "--show", "drops-over-time")[1].splitlines()[1].strip()
        == "date_trunc('minute', seen_at) AS interval_begin,"
    )
    assert run("query", "--show", "nothing")[0] == 2


QUERY = SavedQuery(
    "q", "It is so.", "SELECT :most, :word, a::b", {"most": queries.Parameter("5", "rows"), "word": queries.Parameter("x", "")}
)


def test_parameters_become_literals() -> None:
    assert QUERY.filled({}) == "SELECT 5, 'x', a::b"
    assert QUERY.filled({"word": "it's ' OR 1", "most": "007"}) == "SELECT 7, 'it''s '' OR 1', a::b"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["most=-1"], "The parameter most of the query top-drops is a whole number, not '-1'."),
        (["most=1; DROP TABLE packets"], "is a whole number"),
        (["most=\u0663"], "is a whole number"),
        (["other=1"], "The query top-drops has no parameter 'other'; its parameters: most."),
        (["most"], "--param 'most' is not NAME=VALUE."),
    ],
)
def test_wrong_parameters(settings: list[str], message: str) -> None:
    with pytest.raises(BadOption, match=re.escape(message)):
        queries.sql_of("top-drops", settings)


def test_sql_has_no_parameters() -> None:
    assert queries.sql_of("SELECT 1") == "SELECT 1"
    with pytest.raises(BadOption, match="--param is for saved queries"):
        queries.sql_of("SELECT 1", ["most=1"])


@pytest.mark.parametrize(
    "text", ["SELECT 1", "-- What.\nSELECT :most", "-- What.\n-- :most = 5  rows\nSELECT 1", "-- :most = 5  rows\nSELECT :most"]
)
def test_a_file_without_a_full_head_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="needs a description"):
        queries.parse("q", text)
