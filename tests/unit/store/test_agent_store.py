# SPDX-License-Identifier: Apache-2.0
"""`agent --store`: its options, its output beside the metrics, and what it says about rows that are lost or wait."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("prometheus_client")

from tests.support import sample_packets
from tests.support.store_rows import local, stored
from tracer.errors import StoreUnreachable
from tracer.metrics.metrics_output import MetricsOutput
from tracer.model.finding import Finding, FindingEvidence
from tracer.model.loss import Loss
from tracer.model.packet import Outcome
from tracer.model.summary import RunSummary
from tracer.pipeline.joint_output import JointOutput
from tracer.render.base import Output
from tracer.store import recollection
from tracer.store.bucket import Bucket
from tracer.store.selected_files import StoreSelection
from tracer.store.store_output import StoreOutput
from tracer.store.store_writer import StoreWriter
from tracer.util.frozen import evolve


class BrokenBucket(Bucket):
    def put(self, path: str, content: bytes) -> None:
        raise StoreUnreachable(f"{path} cannot be written: no answer.")


def output_of(bucket: Bucket, spool: Path, err: io.StringIO, most_bytes: int = 1 << 30) -> tuple[StoreOutput, StoreWriter]:
    writer = StoreWriter(bucket, spool, "node-a", most_bytes=most_bytes, has_thread=False)
    return StoreOutput(writer, bucket.url, err=err), writer


def test_the_agent_gives_its_results_to_the_store_and_to_the_metrics(
    run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A finding and its packet can be recalled; the metrics count the same packet."""
    monkeypatch.setenv("NODE_NAME", "node-a")
    packet = next(p for p in sample_packets.every() if p.outcome in (Outcome.DROPPED, Outcome.REJECTED))
    packet = evolve(packet, number=3)
    proof = FindingEvidence("packet", "it was dropped", "observed")
    finding = Finding("x", (1,), "It is so.", (proof,), "look", "mend", True, 1, packet.time, packet.time, (3,))
    given: dict[str, Any] = {}

    def trace(cmd: Any, outputs: Any, notes: Any, view: Any, **arguments: Any) -> int:
        given.update(arguments)
        with view as output:
            assert [type(each) for each in output.outputs()] == [MetricsOutput, StoreOutput]
            for each in output.outputs():
                each.begin([], "")
            output.packet(packet)
            output.finding(finding)
            output.lost(Loss("table", 1, 17, "the ring buffer was full", 10, 20))
            output.end_batch(1)
            output.summary(RunSummary())
        return 0

    monkeypatch.setattr("tracer.commands.trace.trace", trace)
    status, _, err = run(
        "agent", "--metrics", "127.0.0.1:0", "--store", f"file://{tmp_path}/s", "--spool", tmp_path / "spool", "--no-kube"
    )
    assert status == 0 and "FINDING" in err.upper() and given["numbers_connections"] is True
    bucket = local(tmp_path / "s")
    (found,) = recollection.findings(bucket, StoreSelection(nodes=("node-a",)))
    recalled = recollection.packet_of(bucket, found)
    assert recalled and recalled.packet.hops and recalled.packet.verdict == packet.verdict
    assert [row["lost"] for row in stored(bucket)] == [17]
    assert not list((tmp_path / "spool").iterdir())


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["--spool", "/x"], 2),
        (["--store", "ftp://x/y"], 2),
        (["--store", "file:///x", "--stdio"], 2),
        (["--store", "file:///x", "--spool", "/proc/nothing/here"], 20),
    ],
)
def test_options_that_cannot_be(run: Any, monkeypatch: pytest.MonkeyPatch, options: list[str], status: int) -> None:
    monkeypatch.setattr("tracer.commands.trace.trace", lambda *args, **options: pytest.fail("it traces"))
    found, _, err = run("agent", "--metrics", "127.0.0.1:0", *options)
    assert found == status and err.splitlines()[-1].startswith(("k8snet-trace:", " "))


def test_a_spool_that_others_may_change_is_refused(run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tracer.commands.trace.trace", lambda *args, **options: pytest.fail("it traces"))
    (tmp_path / "spool").mkdir()
    os.chmod(tmp_path / "spool", 0o777)
    status, _, err = run("agent", "--metrics", "127.0.0.1:0", "--store", f"file://{tmp_path}/s", "--spool", tmp_path / "spool")
    assert status == 20 and "everybody may write" in " ".join(err.split())


def test_a_store_that_is_away_is_said_once_and_its_rows_wait(tmp_path: Path) -> None:
    err = io.StringIO()
    output, writer = output_of(BrokenBucket(f"file://{tmp_path}/s"), tmp_path / "spool", err)
    for number in range(5):
        output.lost(Loss("table", 1, number, "x", 10, 20))
        output.end_batch(number)
        writer.rotate()
        writer.upload()
    summary = RunSummary()
    output.summary(summary)
    text = " ".join(err.getvalue().split())
    assert text.count("cannot be written: no answer. Rows wait in the spool.") == 1
    assert "segments wait in the spool for the next run with --store" in text and not summary.not_written
    err = io.StringIO()
    output, _ = output_of(local(tmp_path / "s"), tmp_path / "spool", err)
    output.begin([], "")
    output.summary(RunSummary())
    assert "The spool has rows of 1 earlier runs" in err.getvalue()
    assert sorted(row["lost"] for row in stored(local(tmp_path / "s"))) == [0, 1, 2, 3, 4]


def test_rows_that_are_dropped_are_said_and_stored_as_a_loss(tmp_path: Path) -> None:
    err, bucket = io.StringIO(), BrokenBucket(f"file://{tmp_path}/s")
    output, writer = output_of(bucket, tmp_path / "spool", err, most_bytes=2000)
    packets = sample_packets.every()
    for number, packet in enumerate(packets * 3):
        output.packet(packet)
        output.end_batch(number)
        writer.rotate()
        writer.upload()
    output.end_batch(1000)
    bucket.put = local(tmp_path / "s").put  # type: ignore[method-assign]
    summary = RunSummary()
    output.summary(summary)
    dropped = sum(loss.records for loss in summary.not_written)
    assert dropped > 0 and all("the spool was full" in loss.why for loss in summary.not_written)
    assert "rows are lost for file://" in " ".join(err.getvalue().split())
    said = [row for row in stored(local(tmp_path / "s")) if row["probe"] == "store"]
    assert said and all("the spool was full" in row["reason"] for row in said)


def test_a_flood_of_failures_is_stored_as_drops_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each dropped packet has its row in `drops`; whole packets are stored as many as there is room for."""
    now = [100.0]
    monkeypatch.setattr("tracer.store.store_output.time.monotonic", lambda: now[0])
    err, bucket = io.StringIO(), local(tmp_path / "s")
    output, _ = output_of(bucket, tmp_path / "spool", err)
    packet = next(p for p in sample_packets.every() if p.outcome is Outcome.DROPPED)
    for number in range(700):
        output.packet(evolve(packet, number=number))
    now[0] += 5
    for number in range(700, 1000):
        output.packet(evolve(packet, number=number))
    output.end_batch(1)
    output.summary(RunSummary())
    assert len(stored(bucket, "drops")) == 1000 and len(stored(bucket, "packets")) == 600
    (row,) = stored(bucket)
    assert (row["probe"], row["lost"]) == ("store", 400) and "so many failed" in row["reason"]
    assert "400 rows are lost" in " ".join(err.getvalue().split())


class Recorder(Output):
    """Notes the names of the calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name in JointOutput.__dict__ and not name.startswith("_") and name not in ("outputs", "doctor"):
            object.__getattribute__(self, "calls").append(name)
            return lambda *args, **options: None
        return object.__getattribute__(self, name)

    def begin(self, *args: Any) -> None: ...
    def packet(self, *args: Any) -> None: ...
    def finding(self, *args: Any) -> None: ...
    def summary(self, *args: Any) -> None: ...
    def doctor(self, *args: Any) -> None: ...


def test_a_joint_output_passes_every_call_to_each_output() -> None:
    """Also those that a later version of the interface adds: this test names none of them."""
    outputs = Recorder(), Recorder()
    joint = JointOutput(outputs)
    arguments: dict[str, tuple[Any, ...]] = {"begin": ([], ""), "note": ("x",), "begin_batch": ()}
    names = [n for n in JointOutput.__dict__ if not n.startswith("_") and n not in ("outputs", "doctor")]
    for name in names:
        getattr(joint, name)(*arguments.get(name, (0,)))
    assert [n for n in outputs[0].calls] == names
    assert [n for n in outputs[1].calls] == [n for n in names if n != "note"], "a note is said once"
    left_out = {
        "for_node",
        "joined",
        "explained",
        "compared",
        "audit",
        "node_summary",
        "not_sent",
        "doctor",
        "shows_all_results",
    }
    public = {n for n, v in Output.__dict__.items() if not n.startswith("_") and not n.startswith("put") and callable(v)}
    helpers = {n for n in public if n.startswith(("note_", "outputs"))}
    assert public - helpers - left_out <= set(names), json.dumps(sorted(public - helpers - left_out - set(names)))
