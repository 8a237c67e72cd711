# SPDX-License-Identifier: Apache-2.0
"""The files of a capture: rotation, rings, and the files after a crash."""

from __future__ import annotations

import json
import sqlite3
import stat
from pathlib import Path

import pytest

from tests.support import captures
from tests.support.captures import read
from tracer.capture.format import record_layout
from tracer.capture.format.schema import Record
from tracer.capture.record.buffer import RecordBuffer
from tracer.capture.record.capture_files import CaptureFiles, RotationLimits
from tracer.capture.record.writer import CaptureWriter
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.replay.file_series import opened
from tracer.cli import main
from tracer.errors import DamagedCapture, OutputNotWritten
from tracer.pipeline.run import Run


@pytest.fixture(autouse=True)
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch is one transaction, and the end of the run waits for all transactions, also on a slow disk."""
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    monkeypatch.setattr("tracer.capture.record.buffer.CHUNK_SECONDS", 0.0)
    monkeypatch.setattr("tracer.capture.record.writer.CLOSE_SECONDS", 600.0)


def test_a_replay_reads_objects_from_the_capture_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader's own kubeconfig is not searched: its cluster is another one, its credentials may need a program to run."""

    def look(path: str | None) -> None:
        raise AssertionError("looked for a kubeconfig")

    made = captures.capture(tmp_path / "a.k8st", captures.some_batches(8), form="json")
    monkeypatch.setattr("tracer.kube.kubeconfig.find", look)
    totals, text = read(made.files[0])
    assert totals.packets == made.summary.packets and "Service default/http-proxy" in text


def test_a_replay_explains_packets_that_the_run_did_not_explain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of drops are looked up when the drop events arrive."""
    monkeypatch.setattr(Run, "_packets", lambda run, turn: iter(()))
    made = captures.capture(tmp_path / "a.k8st", captures.some_batches(8))
    monkeypatch.undo()
    assert made.summary.packets == 0
    _, text = read(made.files[0])
    dropped = [json.loads(line) for line in text.splitlines() if '"drop":' in line]
    assert dropped and all(p["drop"]["function"] for p in dropped)


def test_each_file_of_a_rotation_can_be_read_alone(tmp_path: Path) -> None:
    made = captures.capture(
        tmp_path / "night.k8st", captures.some_batches(200), sizes=RotationLimits(rotate=40_000), form="json"
    )
    assert len(made.files) > 2 and made.files[1].name == "night.2.k8st"
    totals = [read(path) for path in made.files]
    assert sum(t.packets for t, _ in totals) == made.summary.packets == 200
    # Rules, names, objects and processes of the first file are in the other files too.
    for _, text in totals[1:]:
        assert '"chain_path":"INPUT 1"' in text and "nginx" in text and "Service default/http-proxy" in text
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in made.files)


@pytest.mark.parametrize("sizes", [RotationLimits(rotate=40_000), RotationLimits(seconds=0.0001)], ids=["size", "time"])
def test_the_files_of_a_rotation_are_one_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sizes: RotationLimits
) -> None:
    """The output is equal byte for byte, in any order of the files."""
    packets = 200 if sizes.rotate else 20
    made = captures.capture(tmp_path / "night.k8st", captures.some_batches(packets), sizes=sizes, form="json")
    words = [word for path in reversed(made.files) for word in ("-r", str(path))]
    with pytest.raises(SystemExit) as e:
        main.main([*words, "-o", "json"])
    printed = capsys.readouterr()
    assert (e.value.code, printed.out, printed.err) == (0, made.text["json"], made.messages)
    with pytest.raises(SystemExit):
        main.main(["stats", *map(str, made.files), "--only", "verdicts", "-o", "json"])
    assert f"Outcomes of {packets} packets" in capsys.readouterr().out
    other = captures.capture(tmp_path / "other.k8st").path
    with pytest.raises(SystemExit) as e:
        main.main(["-r", str(made.files[0]), "-r", str(other)])
    assert e.value.code == 2 and "are not of one run" in capsys.readouterr().err


def test_a_late_record_is_only_in_a_later_file(tmp_path: Path) -> None:
    """A late record belongs to a batch before the file's first batch: an answer from before the first batch, or a gap.

    A gap is written when there is room again. A later file repeats no record of the earlier files.
    """
    meta = captures.capture(tmp_path / "other.k8st").path
    files = CaptureFiles(tmp_path / "night.k8st", RotationLimits(seconds=1e-9))
    with CaptureReader(str(meta)) as capture:
        files.describe({k: v for k, v in capture.meta.items() if k != "parts"})
    records = [
        (0, "answer", "a", b"[1,1,1]"),
        (0, "answer", "b", b"[1,1,2]"),
        (1, "answer", "a", b"[1,1,3]"),
        (1, "gap", "", b'[5,"so"]'),
        (2, "note", "", b'"4"'),
    ]
    slots = record_layout.pack(captures.slots(captures.request(1, 1)), 1)
    for number, record in enumerate(records):
        files.insert([record], (number, 0, 0, 1, b"[[1,1,0]]", slots) if number else None)
    files.close()
    assert len(files.names) == len(records)
    with opened([str(path) for path in files.names]) as capture:
        assert [(turn, kind, key) for turn, kind, key, _ in capture.records()] == [row[:3] for row in records]
        assert capture.missed == 0
    with opened([str(files.names[-1])]) as capture:
        assert [row[:3] for row in capture.records()] == [(0, "answer", "b"), (1, "answer", "a"), (2, "note", "")]


def test_files_are_rotated_by_age(tmp_path: Path) -> None:
    made = captures.capture(tmp_path / "night.k8st", captures.some_batches(40), sizes=RotationLimits(seconds=0.0001))
    assert len(made.files) > 2


def test_a_ring_keeps_the_last_packets(tmp_path: Path) -> None:
    size = 80_000
    made = captures.capture(tmp_path / "ring.k8st", captures.some_batches(600), sizes=RotationLimits(ring=size), form="json")
    assert made.path.stat().st_size <= size * 1.1
    totals, text = read(made.path)
    assert 0 < totals.packets < made.summary.packets == 600
    last = text.splitlines()[-1]
    assert last.partition('"time":')[2][:40] == made.text["json"].splitlines()[-2].partition('"time":')[2][:40]
    assert '"chain_path":"INPUT 1"' in last or "nginx" in last


def test_a_gap_makes_replayed_packets_incomplete(tmp_path: Path) -> None:
    path = tmp_path / "a.k8st"
    captures.capture(path)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM records WHERE kind = 'end'")
    files = CaptureFiles(tmp_path / "b.k8st")
    with CaptureReader(str(path)) as capture:
        files.describe({k: v for k, v in capture.meta.items() if k != "parts"})
    buffer = RecordBuffer()
    buffer.add_record(Record.GAP, "", [5, "it could not be written"], 1)
    writer = CaptureWriter(files.insert, files.close, 0)
    buffer.start(writer.put)
    buffer.add_batch(1, captures.slots(captures.refused(1, 1)), False)
    buffer.end(1.0)
    writer.close()
    totals, text = read(tmp_path / "b.k8st")
    assert (totals.lost, totals.packets, totals.incomplete) == (5, 1, 1)
    assert '"probe":"capture","cpu":-1,"count":5,"why":"it could not be written"' in text


def test_an_interrupted_transaction_is_undone_on_reading(tmp_path: Path) -> None:
    """As after kill -9 in the middle of a commit: the journal is still there, and the file is half written."""
    path = tmp_path / "a.k8st"
    made = captures.capture(path)
    before = path.read_bytes()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")
    connection.execute("BEGIN")
    for turn in range(50, 90):
        connection.execute("INSERT INTO records (turn, kind, key, body, crc) VALUES (?, 'note', '', ?, 0)", (turn, b"x" * 3000))
    half, journal = path.read_bytes(), path.with_name("a.k8st-journal").read_bytes()
    connection.close()
    assert half != before and journal
    left = tmp_path / "left.k8st"
    left.write_bytes(half)
    left.with_name("left.k8st-journal").write_bytes(journal)
    assert read(left)[0].packets == made.summary.packets
    assert left.read_bytes() == half, "the file itself is not changed"


def test_batches_written_before_a_kill_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.k8st"
    captures.capture(path)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM records WHERE kind = 'end'")
        connection.execute("DELETE FROM batches WHERE seq = (SELECT max(seq) FROM batches)")
    totals, _ = read(path)
    assert totals.packets > 0
    with CaptureReader(str(path)) as capture:
        assert capture.ended() is None


def test_a_changed_row_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.k8st"
    captures.capture(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE records SET body = replace(body, 'nginx', 'nginy') WHERE kind = 'answer'")
    with pytest.raises(DamagedCapture, match=r"parts? of .* could not be read"):
        read(path)


@pytest.mark.parametrize("where", ["nowhere/a.k8st", "/proc/a.k8st"])
def test_a_path_that_cannot_be_written(tmp_path: Path, where: str) -> None:
    with pytest.raises(OutputNotWritten, match=r"The capture .* cannot be made: .*\."):
        CaptureFiles(tmp_path / where)
