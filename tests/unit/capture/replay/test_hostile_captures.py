# SPDX-License-Identifier: Apache-2.0
"""Captures made to keep their reader busy, or to fill its memory or disk: the reader stops soon, with one sentence."""

from __future__ import annotations

import io
import os
import sqlite3
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.support import captures
from tracer.capture.format import codec
from tracer.capture.format.codec import MalformedRecord, pack, unpack
from tracer.capture.format.schema import crc
from tracer.capture.format.type_checks import fits
from tracer.capture.replay import runner
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.replay.runner import ReplayRequest
from tracer.errors import CaptureUnreadable, DamagedCapture
from tracer.pipeline.shutdown import StopRequest
from tracer.render.json import JsonOutput
from tracer.util import timezone

ROOT = Path(__file__).resolve().parents[4]
ENDLESS = """ALTER TABLE {0} RENAME TO was;
CREATE VIEW {0} AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT n.i AS seq, was.* FROM n, was"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return captures.capture(tmp_path / "a.k8st").path


def read(path: Path) -> None:
    with CaptureReader(str(path)) as capture:
        runner.replay(capture, JsonOutput(io.StringIO(), io.StringIO()), ReplayRequest(), StopRequest())
        runner.check_complete(capture)


def put(path: Path, kind: str, body: Any) -> None:
    """Inserts a record with a correct checksum before the last record."""
    row = (1, kind, "", body if isinstance(body, bytes) else pack(body))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE records SET seq = seq + 1 WHERE kind = 'end'")
        (number,) = connection.execute("SELECT seq - 1 FROM records WHERE kind = 'end'").fetchone()
        connection.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?)", (number, *row, crc(row)))


@pytest.mark.parametrize("table", ["meta", "records", "batches"])
def test_a_table_replaced_by_an_endless_view(path: Path, table: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.executescript(ENDLESS.format(table))
    with pytest.raises(CaptureUnreadable, match="its tables are not those of a capture"):
        CaptureReader(str(path))


def test_a_computed_column(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE meta RENAME COLUMN value TO was")
        connection.execute("ALTER TABLE meta ADD COLUMN value AS (zeroblob(900000000)) VIRTUAL")
    with pytest.raises(CaptureUnreadable, match="its tables are not those of a capture"):
        CaptureReader(str(path))


@pytest.mark.parametrize("kind", ["fifo", "device", "directory", "socket"])
def test_the_reader_does_not_wait_for_a_path_that_is_no_regular_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.k8st"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "directory":
        path.mkdir()
    else:
        import socket

        socket.socket(socket.AF_UNIX).bind(str(path))
    with pytest.raises(CaptureUnreadable, match=r"is no regular file|cannot be read"):
        CaptureReader(str(path))


@pytest.mark.parametrize(
    "name",
    [":/dev/zero", "/dev/zero", "../../../dev/zero", "posix/../../x", ":x", "Europe/Berlin", "A" * 64, "UTC0\n", "<a/b>0"],
)
def test_a_time_zone_is_never_the_name_of_a_file(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TZ", "UTC0")
    timezone.use(name)
    assert os.environ["TZ"] == "UTC0"


@pytest.mark.parametrize(
    "name", ["CET-1CEST,M3.5.0,M10.5.0/3", "UTC0", "<+0330>-3:30", "<k8s>-2:00", "EST5EDT", "XXX-1YYY-2,J60/0,300/-1:30"]
)
def test_recorded_time_zones_are_used(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("TZ", "UTC0")
    timezone.use(name)
    assert os.environ["TZ"] == name
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("unit", [b" ", b"[],", b"{},", b"0,", b'"",'])
def test_a_value_that_becomes_too_large(path: Path, unit: bytes) -> None:
    bomb = zlib.compress(b"[" + unit * ((256 << 20) // len(unit)) + b"0]", 9)
    assert len(bomb) < 1 << 20
    with pytest.raises(MalformedRecord):
        unpack(bomb)
    put(path, "note", bomb)
    with pytest.raises(DamagedCapture, match="A part of"):
        read(path)


def test_values_of_real_runs_are_not_too_large() -> None:
    """A reading of a table of 20,000 rules is 3.5 MB of mostly zeros, and as much text."""
    rule = f'-A KUBE-SVC-ABCDEFGHIJKLMNOP -m comment --comment "{"x" * 60}" -m statistic --mode random -j KUBE-SEP-A\n'
    body = {"blob": "AAAAAAAAAAAAAAAAHAAmAAAA" * 10 * 20_000, "text": rule * 20_000}
    stored = pack(body)
    assert unpack(stored) == body and len(stored) * codec.MAX_RATIO > len(rule)


@pytest.mark.parametrize(
    "text", [b"1e999", b"Infinity", b"-Infinity", b"NaN", b"[%d]" % (1 << 64), b"1" * 5000, b"[" * 5000 + b"]" * 5000]
)
def test_impossible_numbers_and_depths_are_refused(text: bytes) -> None:
    with pytest.raises(MalformedRecord):
        unpack(text)


def test_a_sparse_journal_and_a_sparse_file(path: Path) -> None:
    """Neither a sparse journal nor a sparse file is copied in its full length."""
    before = path.stat().st_size
    beside = path.with_name(path.name + "-journal")
    beside.write_bytes(bytes.fromhex("d9d505f920a163d7") + b"\xff\xff\xff\xff" + b"\0" * 500)
    os.truncate(beside, 1 << 40)
    read(path)
    os.truncate(path, 1 << 40)
    with CaptureReader(str(path)) as capture:
        assert capture._scratch
        (copy,) = Path(capture._scratch.name).iterdir()
        assert copy.stat().st_blocks * 512 <= before + (1 << 20)


@pytest.mark.parametrize(
    ("value", "hint", "right"),
    [
        (True, int, False), (1, int, True), (1 << 64, int, False), (1.0, int, False), (1, float, True),
        (float("nan"), float, False),
        ((1, "a"), tuple[int, str], True), ([1, "a"], tuple[int, str], False), ((1,), tuple[int, str], False),
        ({"a": 1}, dict[str, int], True), ({1: 1}, dict[str, int], False), (None, str | None, True),
        ((), tuple[int, ...], True),
        ({"a": 1, "b": 2}, {"a": int}, True), ({"b": 2}, {"a": int}, False), (frozenset({1}), frozenset[int], True),
    ],
)  # fmt: skip
def test_type_checks(value: Any, hint: Any, right: bool) -> None:
    assert fits(value, hint) == right


def test_the_command_does_not_wait_for_a_fifo(tmp_path: Path) -> None:
    """The command itself, on a FIFO without a writer."""
    os.mkfifo(tmp_path / "x.k8st")
    done = subprocess.run(
        [sys.executable, "-m", "tracer", "-r", str(tmp_path / "x.k8st")], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (21, "") and done.stderr.endswith("is no regular file.\n")
