# SPDX-License-Identifier: Apache-2.0
"""From captures to a store and back: rows, findings with their packets and rules, selection, versions, compaction."""

from __future__ import annotations

import json
import lzma
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

from tests.support import known_capture
from tests.support.store_rows import NIGHT, local, losses, numbers, stored
from tracer.analysis import queries
from tracer.cli.store_commands import moment
from tracer.errors import BadOption, NewerCapture, StoreUnreachable
from tracer.store import compaction, parquet_file, stored_tables
from tracer.store.bucket import Bucket
from tracer.store.partition import HOUR_US, Partition, parse
from tracer.store.selected_files import NOTE_PREFIX, StoreSelection, select
from tracer.store.store_writer import StoreWriter

REAL = Path(__file__).resolve().parents[2] / "data/real"


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A real node with several faults, and a capture with known answers."""
    directory = tmp_path_factory.mktemp("captures")
    (directory / "B.k8st").write_bytes(lzma.decompress((REAL / "B.k8st.xz").read_bytes()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.0001)
        return {"B": directory / "B.k8st", "known": known_capture.make(directory / "known.k8st")}


@pytest.fixture(scope="module")
def filled(captures: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a store with both nodes."""
    from tracer.cli import main

    url = f"file://{tmp_path_factory.mktemp('store')}"
    for node, capture in (("node-b", captures["B"]), ("rack 1/node=é", captures["known"])):
        with pytest.raises(SystemExit) as e:
            main.main(["store", str(capture), url, "--node", node])
        assert not e.value.code
    return url


def rows(run: Any, *args: str) -> list[tuple[Any, ...]]:
    status, out, err = run("query", *args, "-o", "json")
    assert status == 0, err
    return [tuple(row.values()) for row in json.loads(out)["rows"]]


@pytest.mark.parametrize("name", [n for n in queries.names()])
def test_a_saved_query_of_one_node_answers_as_on_its_capture(
    run: Any, captures: dict[str, Path], filled: str, name: str
) -> None:
    ours = rows(run, filled, name, "--node", "node-b")
    host = {os.uname().nodename, "node-b"}
    named = [tuple("node" if value in host else value for value in row) for row in ours]
    status, out, _ = run("query", captures["B"], name, "-o", "json")
    assert status == 0
    table = json.loads(out)["rows"]
    expected = [tuple("node" if key == "node" else value for key, value in row.items()) for row in table]
    assert named == expected and (expected or name in ("losses", "retransmissions"))


def test_nodes_are_selected_by_name(run: Any, filled: str) -> None:
    sql = "SELECT node, COUNT(*) AS packets FROM packets GROUP BY node ORDER BY node"
    assert rows(run, filled, sql) == [("node-b", 185), ("rack 1/node=é", 330)]
    assert rows(run, filled, sql, "--node", "node-b,gone") == [("node-b", 185)]
    _, _, err = run("query", filled, sql, "--node", "gone")
    assert err == "The store has nothing of gone in this time.\n"


def test_times_are_selected_by_event(run: Any, filled: str) -> None:
    """The known capture is of the year 2001: the first minute has 5 of the 9 packets that a rule dropped."""
    sql = "SELECT COUNT(*) AS n FROM drops WHERE service = 'cart'"
    assert rows(run, filled, sql, "--until", "2001-09-09T01:47:00") == [(5,)]
    assert rows(run, filled, sql, "--since", "2001-09-09T01:47:00", "--until", "2001-09-09T01:48") == [(4,)]
    assert rows(run, filled, sql, "--since", "1h") == [(0,)]


def test_a_finding_is_reconstructed_from_the_store_alone(run: Any, filled: str) -> None:
    status, out, err = run("recall", filled, "--node", "node-b", "--finding", "syn_dropped")
    assert (status, err) == (0, "")
    text = " ".join(out.split())
    assert "FINDING syn_dropped on node-b, 2 packets: checkoutd0" in text, "the finding"
    assert "PREROUTING 1 > KUBE-SERVICES 32 > KUBE-NODEPORTS 4" in text, "the path through the rules"
    assert "Service shop/checkout:tls, NodePort 31222 -> pod shop/checkout-0" in text, "the owner"
    assert "rules then in force: ip nat in node, 145 rules, generation 73" in text
    status, out, _ = run("recall", filled, "--node", "node-b", "--finding", "syn_dropped", "-o", "json")
    head, packet = map(json.loads, out.splitlines()[:2])
    assert packet["type"] == "packet" and packet["number"] == head["finding"]["packet"] == 42
    deciding = next(hit for hit in head["rule_hits"] if hit["is_deciding"] and hit["verdict"] == "DNAT")
    (rules,) = (each for each in head["rules"] if each["ruleset"] == deciding["ruleset"])
    lines = [line for line in rules["text"].splitlines() if line.startswith(f"-A {deciding['nf_chain']} ")]
    assert lines[deciding["rule_number"] - 1] == f"-A {deciding['nf_chain']} {deciding['rule_text']}"
    assert {hit["ruleset"] for hit in head["rule_hits"]} == {each["ruleset"] for each in head["rules"]}


def test_a_packet_is_recalled_as_a_capture_shows_it(run: Any, filled: str, captures: dict[str, Path]) -> None:
    (key,) = rows(run, filled, "SELECT node, run, packet FROM packets WHERE node = 'node-b' AND packet = 42")
    _, out, _ = run("recall", filled, "--packet", ":".join(map(str, key)), "-o", "json")
    shown = json.loads(out.splitlines()[1])
    _, out, _ = run("-r", captures["B"], "-o", "json")
    original = next(p for p in map(json.loads, out.splitlines()) if p["type"] == "packet" and p["number"] == 42)
    assert {k: v for k, v in shown.items() if k != "connection"} == {k: v for k, v in original.items() if k != "connection"}
    assert run("recall", filled, "--packet", "node-b:x:42")[0] == 2
    assert run("recall", filled, "--packet", "42")[0] == 2


def test_a_capture_can_be_stored_again(run: Any, captures: dict[str, Path], tmp_path: Path) -> None:
    url = f"file://{tmp_path}/s"
    for _ in range(2):
        assert run("store", captures["known"], url)[0] == 0
    assert rows(run, url, "SELECT COUNT(*) AS n FROM packets") == [(330,)]


def test_urls(run: Any, tmp_path: Path, captures: dict[str, Path]) -> None:
    assert run("query", f"file://{tmp_path}/none", "top-drops")[0] == StoreUnreachable.status
    for url in ("s3:///x", "file://host/x", "s3://key:secret@bucket/x"):
        status, _, err = run("query", url, "top-drops")
        assert status == 2 and "secret" not in err, err
    assert run("query", f"file://{tmp_path}", "top-drops", "--port", "80")[0] == 2
    assert run("query", captures["known"], "top-drops", "--since", "6h")[0] == 2


def test_moments() -> None:
    assert moment("6h", NIGHT) == NIGHT - 6 * HOUR_US
    assert moment("2026-11-26T02:30", 0) == moment("2026-11-26T03:30+01:00", 0) == NIGHT
    with pytest.raises(BadOption):
        moment("yesterday", NIGHT)


@pytest.mark.parametrize("node", ["a", "rack 1/ñ=%", "..", "x" * 200])
def test_a_partition_has_one_path(node: str) -> None:
    partition = Partition("packets", NIGHT // HOUR_US, node)
    assert parse(f"{partition.directory}/f.v1.parquet") == (partition, "f.v1.parquet")
    assert partition.directory.count("/") == 3 and "/../" not in f"{partition.directory}/"
    assert parse("packets/date=2026-13-41/hour=02/node=a/f") is None


# ---- versions ----


def test_an_older_file_lacks_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that a later version adds is NULL in the files of an earlier one; a segment of it still goes to the store."""
    bucket = local(tmp_path / "s")
    earlier = stored_tables.columns("losses")[:-1]
    with monkeypatch.context() as patch:
        patch.setattr(stored_tables, "columns", lambda table: earlier)
        rows = [("run", NIGHT, *row.values[:-1]) for row in losses(3)]
        path = f"{Partition('losses', NIGHT // HOUR_US, 'a').directory}/old.v1.parquet"
        bucket.put(path, parquet_file.encode("losses", rows))
    writer = StoreWriter(bucket, tmp_path / "spool", "a", has_thread=False)
    writer.add([row.__class__(row.table, row.at, row.values[:-1]) for row in losses(3, first=3)])
    writer.close(1)
    assert numbers(bucket) == list(range(6)) and {row["reason"] for row in stored(bucket)} == {None}


def test_a_newer_file_is_not_read(tmp_path: Path) -> None:
    bucket = local(tmp_path / "s")
    bucket.put(f"{Partition('losses', NIGHT // HOUR_US, 'a').directory}/new.v2.parquet", b"")
    with pytest.raises(NewerCapture):
        numbers(bucket)
    assert numbers_of(bucket, StoreSelection(since=NIGHT + HOUR_US)) == [], "another hour can be read"


def numbers_of(bucket: Bucket, selection: StoreSelection) -> list[int]:
    return [row["lost"] for row in stored(bucket, selection=selection)]


def test_the_version_is_in_each_file(filled: str) -> None:
    import pyarrow.parquet

    for path in Path(filled.removeprefix("file://")).rglob("*.parquet"):
        assert parquet_file.version_of(pyarrow.parquet.read_schema(path).metadata) == stored_tables.VERSION


# ---- compaction ----


def many_files(directory: Path) -> Bucket:
    """A store with 10 files of one hour, and 1 of the next one."""
    bucket = local(directory)
    for n in range(11):
        writer = StoreWriter(bucket, directory.parent / "spool", "a", has_thread=False)
        writer.add(losses(10, first=10 * n, at=NIGHT + (HOUR_US if n == 10 else 0)))
        writer.close(1)
    return bucket


def test_compaction_keeps_the_rows(tmp_path: Path) -> None:
    bucket = many_files(tmp_path / "s")
    done = compaction.compact(bucket, NIGHT + 4 * HOUR_US)
    assert (done.directories, done.before, done.after) == (1, 10, 1) and done.bytes_after < done.bytes_before
    assert numbers(bucket) == list(range(110)) and len(list(bucket.objects(""))) == 2
    assert compaction.compact(bucket, NIGHT + 4 * HOUR_US).before == 0, "nothing is left to do"


def test_an_hour_that_is_not_over_is_left_alone(tmp_path: Path) -> None:
    bucket = many_files(tmp_path / "s")
    assert compaction.compact(bucket, NIGHT + HOUR_US).before == 0


class Crash(Exception):
    pass


@pytest.mark.parametrize("steps", range(14))
def test_a_compaction_that_is_killed_changes_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Killed after each of its steps: every row is there once, before and after the next compaction."""
    bucket, left = many_files(tmp_path / "s"), [steps]

    def stepping(name: str) -> Any:
        original = getattr(Bucket, name)

        def step(self: Bucket, *args: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Crash
            return original(self, *args)

        return step

    with monkeypatch.context() as patch:
        for name in ("put", "remove"):
            patch.setattr(Bucket, name, stepping(name))
        try:
            compaction.compact(bucket, NIGHT + 4 * HOUR_US)
        except Crash:
            assert steps < 13
    assert numbers(bucket) == list(range(110))
    compaction.compact(bucket, NIGHT + 4 * HOUR_US)
    assert numbers(bucket) == list(range(110))
    assert len(list(bucket.objects(""))) == 2 and not any(NOTE_PREFIX in each.path for each in bucket.objects(""))


def test_only_wanted_hours_and_nodes_are_listed(tmp_path: Path) -> None:
    bucket = many_files(tmp_path / "s")
    assert select(bucket, StoreSelection(since=NIGHT + HOUR_US)).count == 1
    assert select(bucket, StoreSelection(until=NIGHT + 10 * HOUR_US, nodes=("b",))).count == 0
    assert select(bucket, StoreSelection(until=NIGHT)).count == 10, "the hour has rows before and after"
