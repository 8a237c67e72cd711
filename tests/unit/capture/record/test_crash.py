# SPDX-License-Identifier: Apache-2.0
"""A writer that is killed at any time: all committed records can be read back."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fuzz import damaged_captures
from tracer.capture.replay.capture_reader import CaptureReader

ROOT = Path(__file__).resolve().parents[4]
WRITER = """
import sys, time
from pathlib import Path
from tests.support import captures
from tracer.capture.record import buffer
from tracer.capture.record.capture_files import CaptureFiles, RotationLimits
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.capture.record.writer import CaptureWriter
buffer.CHUNK_SECONDS = 0.0
first = captures.capture(Path(sys.argv[1]) / "first.k8st").path
files = CaptureFiles(Path(sys.argv[1]) / "killed.k8st", RotationLimits(ring=int(sys.argv[2])))
with CaptureReader(str(first)) as capture:
    files.describe({k: v for k, v in capture.meta.items() if k != "parts"} | {"ring": int(sys.argv[2])})
writer, made = CaptureWriter(files.insert, files.close, 0), buffer.RecordBuffer()
made.start(writer.put)
for number in range(1, 1 << 30):
    made.add_batch(number * 1_000_000, captures.slots(captures.request(number, number * 1_000_000)), False)
    while writer._waiting_bytes > 1 << 14:
        time.sleep(0.001)
    if number == 30:
        print("writing", flush=True)
"""


@pytest.mark.parametrize("ring", [0, 150_000])
@pytest.mark.parametrize("seed", range(3))
def test_a_writer_killed_at_any_time(tmp_path: Path, seed: int, ring: int) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(ring)], stdout=subprocess.PIPE, cwd=ROOT)
    assert writer.stdout and writer.stdout.readline() == b"writing\n"
    time.sleep(random.Random(seed).uniform(0.05, 0.5))
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    path = tmp_path / "killed.k8st"
    way, printed = damaged_captures.read(path)
    assert way == "in-part" and printed.count('"type":"packet"') >= 10
    with CaptureReader(str(path)) as capture:
        turns = [batch.first_batch for batch in capture.chunks()]
        assert turns == list(range(turns[0], turns[0] + len(turns))) and capture.ended() is None
        assert capture.missed == 0
