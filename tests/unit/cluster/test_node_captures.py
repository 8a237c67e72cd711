# SPDX-License-Identifier: Apache-2.0
"""A capture that was sent as frames is the capture that would have been written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import known_capture
from tests.support.fake_kubectl import ROOT
from tracer.agent.frame_queue import FrameQueue
from tracer.agent.streamed_capture import StreamedCapture
from tracer.capture.record.capture_files import RotationLimits
from tracer.cluster.node_captures import NodeCaptures, file_name
from tracer.errors import OutputNotWritten
from tracer.protocol.capture_pieces import MOST_TRANSACTION_BYTES, PIECE_BYTES, CapturePieces, CaptureTransaction, pieces
from tracer.protocol.malformed_frame import MalformedFrame


def read(path: Path) -> str:
    """What a replay prints."""
    command = [sys.executable, "-m", "tracer", "-r", str(path), "-o", "json"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_a_sent_capture_is_read_as_the_first_one(tmp_path: Path) -> None:
    meta, records, batches = known_capture.rows(known_capture.make(tmp_path / "known.k8st"))
    queue = FrameQueue()
    queue.add_credit(1 << 20)
    stream = StreamedCapture(queue)
    stream.describe({name: value for name, value in meta.items() if name not in ("parts", "repeated")})
    captures = NodeCaptures(tmp_path / "captures", RotationLimits())
    for batch in batches[:-1]:
        stream.insert([], batch)
    stream.insert(records, batches[-1])
    stream.close()
    for entry in queue.read(1 << 20, 0)[0]:
        assert isinstance(entry.content, bytes)
        captures.feed("node-1", entry.content)
    (path,) = captures.close()
    assert path == tmp_path / "captures" / "node-1.k8st" and path.stat().st_mode & 0o777 == 0o600
    assert known_capture.rows(path) == (meta, records, batches)
    assert read(path) == read(tmp_path / "known.k8st")


def test_a_record_that_is_larger_than_a_frame_goes_in_pieces() -> None:
    sent = CaptureTransaction({"a": 1}, [(1, "objects", "k", os.urandom(3 * PIECE_BYTES))], (1, 2, 3, 4, b"x", b""))
    parts, found = CapturePieces(), None
    for piece in pieces(sent):
        assert found is None and len(piece) <= PIECE_BYTES + 1
        found = parts.feed(piece)
    assert found == sent
    with pytest.raises(ValueError, match="a part of the capture has"):
        list(pieces(CaptureTransaction(None, [(1, "objects", "k", bytes(MOST_TRANSACTION_BYTES))])))


@pytest.mark.parametrize(
    "piece",
    [
        b"", b"\1", b"\1{}\n", b"\1[1]\n", b'\1{"meta":null,"records":[[1,"a","b",5]],"batch":null}\nabc',
        b'\1{"meta":null,"records":[[1,"a","b",-1]],"batch":null}\n',
        b'\1{"meta":null,"records":[["1","a","b",0]],"batch":null}\n',
        b'\1{"meta":3,"records":[],"batch":null}\n', b'\1{"meta":null,"records":[],"batch":[1]}\n',
        b'\1{"meta":null,"records":[],"batch":null}\nrest', b'\1{"meta":null,"records":[[1e99,"a","b",0]],"batch":null}\n',
    ],
)  # fmt: skip
def test_a_malformed_piece_is_refused(piece: bytes) -> None:
    with pytest.raises(MalformedFrame):
        CapturePieces().feed(piece)


def test_pieces_without_end_are_refused() -> None:
    parts = CapturePieces()
    with pytest.raises(MalformedFrame, match="too large"):
        for _ in range(MOST_TRANSACTION_BYTES // PIECE_BYTES + 2):
            parts.feed(b"\0" + bytes(PIECE_BYTES))


def test_the_end_of_the_stream_ends_the_recorder() -> None:
    queue = FrameQueue()
    queue.end()
    with pytest.raises(OSError, match="the client has ended"):
        StreamedCapture(queue).insert([], None)


def test_a_node_cannot_choose_another_directory(tmp_path: Path) -> None:
    assert [file_name(name) for name in ("../../etc/x", "..", "node 1", "ip-10-0-0-1.ec2.internal")] == [
        "_.._etc_x", "node", "node_1", "ip-10-0-0-1.ec2.internal",
    ]  # fmt: skip


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "node-1.k8st").touch()
    captures = NodeCaptures(tmp_path, RotationLimits())
    (piece,) = pieces(CaptureTransaction({}))
    with pytest.raises(OutputNotWritten, match="cannot be made"):
        captures.feed("node-1", piece)
    with pytest.raises(OutputNotWritten, match="cannot be made"):
        NodeCaptures(tmp_path / "node-1.k8st", RotationLimits())
