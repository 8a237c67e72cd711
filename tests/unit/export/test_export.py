# SPDX-License-Identifier: Apache-2.0
"""Exports as other programs read them; each format is read by its own reader if that is installed."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support import captures, known_capture, sample_packets
from tracer import export
from tracer.analysis.tables import tables
from tracer.export import CaptureInfo
from tracer.model.summary import RunSummary

ROOT = Path(__file__).resolve().parents[3]
ABOUT = CaptureInfo("a.k8st", "node-1", "6.12.0", "--port 1", 0)


LIBRARIES = {"pcapng": "scapy", "parquet": "pyarrow", "perfetto": "perfetto"}


def needs(form: str) -> None:
    """Skips the test without the library of a format."""
    if form in LIBRARIES:
        pytest.importorskip(LIBRARIES[form])


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> captures.Printed:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    return captures.capture(tmp_path / "a.k8st", captures.some_batches(20), form="json")


@pytest.mark.parametrize("form", export.names())
def test_only_the_owner_can_read_an_export(capture: captures.Printed, tmp_path: Path, run: Any, form: str) -> None:
    needs(form)
    place = tmp_path / "place"
    place.mkdir()
    old = os.umask(0)
    try:
        assert run("export", capture.path, "--to", form, place / "out") == (0, "", "")
    finally:
        os.umask(old)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in place.rglob("*") if path.is_file()}
    assert modes == {0o600} and stat.S_IMODE((place / "out").stat().st_mode) in (0o600, 0o700)


@pytest.mark.parametrize("form", export.names())
def test_nothing_is_written_through_a_link(capture: captures.Printed, tmp_path: Path, run: Any, form: str) -> None:
    needs(form)
    target, goal = tmp_path / "out", tmp_path / "goal"
    target.symlink_to(goal)
    assert run("export", capture.path, "--to", form, target) == (20, "", f"k8snet-trace: {target} already exists.\n")
    # Also if the link is created after the check.
    with pytest.raises(FileExistsError):
        export.find(form)(target, ABOUT)
    assert not goal.exists()


def test_every_format_has_a_description() -> None:
    for name in export.names():
        module = __import__(f"tracer.export.{name}", fromlist=["DESCRIPTION"])
        assert module.DESCRIPTION and export.find(name)


def test_jsonl_is_equal_to_the_json_output(run: Any, capture: captures.Printed, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    assert run("export", capture.path, "--to", "jsonl", target) == (0, "", "")
    lines, printed = target.read_text().splitlines(), capture.text["json"].splitlines()
    assert [line for line in lines if '"type":"packet"' in line] == [line for line in printed if '"type":"packet"' in line]
    schema = Draft202012Validator(json.loads((ROOT / "tracer/render/schema.json").read_text()))
    for line in lines:
        schema.validate(json.loads(line))


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        (["--to", "xml"], 2, f"There is no export format 'xml': choose one of {', '.join(export.names())}."),
        ([], 2, "--to"),
    ],
)
def test_wrong_options(run: Any, capture: captures.Printed, tmp_path: Path, args: list[str], status: int, message: str) -> None:
    found = run("export", capture.path, *args, tmp_path / "x")
    assert found[0] == status and message in found[2] and not (tmp_path / "x").exists()


def test_an_existing_file_is_not_overwritten(run: Any, capture: captures.Printed, tmp_path: Path) -> None:
    target = tmp_path / "x"
    target.write_text("mine")
    assert run("export", capture.path, "--to", "jsonl", target) == (20, "", f"k8snet-trace: {target} already exists.\n")
    assert target.read_text() == "mine"


def test_parquet_for_duckdb_and_pandas(run: Any, capture: captures.Printed, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    target = tmp_path / "tables"
    assert run("export", capture.path, "--to", "parquet", target)[0] == 0
    duckdb, pandas = pytest.importorskip("duckdb"), pytest.importorskip("pandas")
    frame = pandas.read_parquet(target / "packets.parquet")
    assert len(frame) == 20 and set(frame["outcome"]) == {"delivered", "dropped"}
    assert str(frame["seen_at"].dtype) == "datetime64[us]", "Spark reads no timestamps in ns"
    assert str(frame["seen_at"][0]) == "2001-09-09 01:46:40.000001" and frame["seen_ns"][0] == 10**18 + 1000
    sql = (
        f"SELECT h.rule_path, count(*) FROM '{target}/packets.parquet' p JOIN '{target}/hops.parquet' h USING (packet)"
        " WHERE h.rule_path IS NOT NULL GROUP BY 1"
    )
    assert duckdb.sql(sql).fetchall() == [("INPUT 1", 9)]


def test_parquet_has_the_data_dictionary(run: Any, capture: captures.Printed, tmp_path: Path) -> None:
    files = pytest.importorskip("pyarrow.parquet")
    target = tmp_path / "tables"
    assert run("export", capture.path, "--to", "parquet", target)[0] == 0
    assert {path.stem for path in target.iterdir()} == set(tables())
    for name, table in tables().items():
        schema = files.read_schema(target / f"{name}.parquet")
        assert schema.names == ["node", *(column.name for column in table.columns)]
        assert set(files.read_table(target / f"{name}.parquet").column("node").to_pylist()) <= {os.uname().nodename}
        for column in table.columns:
            metadata = schema.field(column.name).metadata
            assert (metadata[b"meaning"].decode(), metadata[b"unit"].decode()) == (column.meaning, column.unit)


def test_parquet_takes_any_text_and_number(tmp_path: Path) -> None:
    """A name need not be Unicode, and a number of a damaged capture may have more than 64 bits."""
    files = pytest.importorskip("pyarrow.parquet")
    made = export.find("parquet")(tmp_path / "tables", ABOUT)
    made.packet(replace(sample_packets.node_port(), verdict="delivered to \udcff", length=2**64))
    made.packet(replace(sample_packets.node_port(), verdict="delivered to \xe4", length=60))
    made.close(RunSummary())
    frame = files.read_table(tmp_path / "tables/packets.parquet").to_pydict()
    assert frame["verdict"] == ["delivered to \\xff", "delivered to \xe4"] and frame["length"] == [None, 60]


def test_parquet_keeps_a_bounded_number_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("tracer.export.parquet.GROUP", 10)
    made: Any = export.find("parquet")(tmp_path / "tables", ABOUT)
    for _ in range(25):
        made.packet(sample_packets.node_port())
        assert all(len(rows) < 10 + len(sample_packets.node_port().hops) for rows in made._rows.values())
    made.close(RunSummary())
    assert files.ParquetFile(tmp_path / "tables/packets.parquet").num_row_groups == 3


def test_a_redacted_export_has_no_name_of_any_table(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not in SYN verdicts, connections and counters. Names of two letters are not replaced."""
    arrow = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.0001)
    made = known_capture.make(tmp_path / "known.k8st")
    assert run("export", made, "--to", "parquet", "--redact", tmp_path / "tables")[0] == 0
    words = ("cart", "orders", "192.168.56", "10.244.0", "10.96.0", "nginx", "pod-a")
    for name in ("packets", "connections", "syns", "hops", "rule_hits", "drops"):
        rows = arrow.read_table(tmp_path / f"tables/{name}.parquet").to_pylist()
        texts = {value for row in rows for value in row.values() if isinstance(value, str)}
        assert len(texts) > 5 and not [text for text in texts if any(word in text for word in words)], name
