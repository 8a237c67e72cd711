# SPDX-License-Identifier: Apache-2.0
"""Exports as other programs read them; each format is read by its own reader if that is installed."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.support import captures, sample_packets
from tracer import export
from tracer.export import CaptureInfo
from tracer.export.pcapng import LINKTYPE_RAW, Pcapng, as_shown
from tracer.model.endpoints import Endpoints
from tracer.model.summary import RunSummary

ROOT = Path(__file__).resolve().parents[3]
ABOUT = CaptureInfo("a.k8st", "node-1", "6.12.0", "--port 1", 0)


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> captures.Printed:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    return captures.capture(tmp_path / "a.k8st", captures.some_batches(20), form="json")


@pytest.mark.parametrize("form", export.names())
def test_only_the_owner_can_read_an_export(capture: captures.Printed, tmp_path: Path, run: Any, form: str) -> None:
    for library in ("scapy", "pyarrow") if form in ("pcapng", "parquet") else ():
        pytest.importorskip(library)
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
    for library in ("scapy", "pyarrow") if form in ("pcapng", "parquet") else ():
        pytest.importorskip(library)
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
    assert str(frame["time"].dtype) == "datetime64[ns]" and str(frame["time"][0]).startswith("2001-09-09 01:46:40.000001")
    sql = (
        f"SELECT h.chain_path, count(*) FROM '{target}/packets.parquet' p JOIN '{target}/hops.parquet' h ON h.packet = p.number"
        " WHERE h.chain_path IS NOT NULL GROUP BY 1"
    )
    assert duckdb.sql(sql).fetchall() == [("INPUT 1", 9)]


def test_pcapng_for_wireshark(run: Any, capture: captures.Printed, tmp_path: Path) -> None:
    pytest.importorskip("scapy")
    target = tmp_path / "out.pcapng"
    assert run("export", capture.path, "--to", "pcapng", target)[0] == 0
    from scapy.utils import PcapNgReader

    with PcapNgReader(str(target)) as reader:
        packets = list(reader)
    assert len(packets) == 20 + 2 * 10, "each rewrite adds the packet once more"
    first = packets[0]
    assert (first["IP"].src, first["TCP"].dport, first["TCP"].flags) == ("192.168.56.1", 30285, "S")
    assert first.wirelen == 60 and b"packet 1: delivered to pid 4242 nginx in pod-a" in first.comments[0]
    if shutil.which("tshark"):
        fields = ["-T", "fields", "-e", "frame.interface_name", "-e", "ip.src", "-e", "tcp.dstport"]
        chosen = ["-Y", 'frame.comment contains "rule=INPUT 1"']
        done = subprocess.run(["tshark", "-r", str(target), *chosen, *fields], capture_output=True, text=True)
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        assert rows == [["node/eth0", "192.168.56.1", "8080"]] * 9, done.stderr


def test_an_interface_has_packets_of_both_families(tmp_path: Path) -> None:
    pytest.importorskip("scapy")
    from scapy.layers.inet import IP
    from scapy.layers.inet6 import IPv6
    from scapy.utils import RawPcapNgReader

    four, six = sample_packets.node_port(), sample_packets.node_port()
    six = replace(six, endpoints=Endpoints("fd00:56::1", 40812, "fd00:56::10", 30285), hops=six.hops[:1])
    target = tmp_path / "out.pcapng"
    made = Pcapng(target, ABOUT)
    for each in (six, four):
        made.packet(each)
    made.close(RunSummary())
    with RawPcapNgReader(str(target)) as reader:
        (first, of_first), (second, of_second), *_ = list(reader)
    assert of_first.linktype == of_second.linktype == LINKTYPE_RAW, "the first bits show the IP version"
    assert (IPv6(first).dst, IP(second).dst) == ("fd00:56::10", "192.168.56.10")


def test_the_comments_of_a_packet() -> None:
    shown = as_shown(sample_packets.node_port())
    assert len(shown) == 3 and [s.ends.dport for s in shown] == [30285, 8080, 8080]
    assert shown[0].comment.startswith("packet ") and "DNAT" in shown[0].comment and "DNAT" in shown[1].comment
    assert shown[0].time < shown[1].time
