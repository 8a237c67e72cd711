# SPDX-License-Identifier: Apache-2.0
"""Captures of the probes: reading one prints the same as the live run, also for one file, and after the writer was killed."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest

from scenes import topology
from tests.kernel.captured import FILTER, check_same_output, read, send_requests, send_requests_slowly, until
from tests.kernel.recorder import Recorder
from tests.support.capture_bytes import everything
from tracer.capture.record.capture_files import RotationLimits
from tracer.capture.redact.records import RecordRedactor
from tracer.model.filter import Filter

pytestmark = pytest.mark.thorough

RING = 160_000


def test_live_output_is_printed_again(recorder: Recorder) -> None:
    made = recorder("plain", lambda: send_requests(2), FILTER)
    check_same_output(made)
    text = made.text.read_text()
    assert "DNAT" in text and "REJECTED in filter/INPUT" in text and "scene-pod-" in text


@pytest.mark.parametrize("sizes", [RotationLimits(rotate=30_000), RotationLimits(seconds=1.2)], ids=["size", "time"])
def test_rotated_files_are_one_capture(recorder: Recorder, sizes: RotationLimits) -> None:
    made = recorder("rotated", lambda: send_requests(12), FILTER, sizes=sizes)
    assert len(made.files) > 2
    check_same_output(made)
    for path in made.files[1:3]:
        alone = read(path)
        assert alone.returncode == 0 and "DNAT" in alone.stdout and "Traceback" not in alone.stderr, alone.stderr


def test_a_ring_keeps_the_last(recorder: Recorder) -> None:
    made = recorder("ring", lambda: send_requests(40), Filter(), sizes=RotationLimits(ring=RING))
    (path,) = made.files
    assert path.stat().st_size < 1.5 * RING, "carried-over records stay, and are a large part of so small a ring"
    done = read(path)
    assert done.returncode == 0, done.stderr
    live, again = made.text.read_text().split("\n\n"), done.stdout.split("\n\n")
    assert len(again) < len(live) and again[-10:-1] == live[-10:-1]
    assert "Service default/http-proxy" in done.stdout, "carried-over records are kept"


def test_killed(recorder: Recorder, tmp_path: Path) -> None:
    """The writer is a child process with the same probes."""

    def work() -> None:
        while True:
            send_requests_slowly()

    child = os.fork()
    if not child:
        with suppress(BaseException):
            recorder("killed", work, FILTER)
        os._exit(1)
    printed = tmp_path / "killed.text"
    until("REJECTED in filter/INPUT", printed, lambda: time.sleep(0.5))
    before = printed.read_text().split("\n\n")[:-1]
    # A chunk is written every second; this machine is slow.
    time.sleep(4)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    done = read(tmp_path / "killed.k8st")
    assert done.returncode == 0 and "did not end as it should" in done.stderr, done.stderr
    again = done.stdout.split("\n\n")
    print(f"{len(before)} blocks four seconds before the kill, {len(again)} read back")
    assert len(before) >= 6 and again[: len(before)] == before


def test_redacted_while_it_is_written(recorder: Recorder) -> None:
    """No address, name or rule of this machine is in the file; it is read like any other capture."""
    made = recorder("redacted", lambda: send_requests(2), FILTER, redacted=RecordRedactor())
    (path,) = made.files
    done = read(path)
    assert done.returncode == 0 and "DNAT" in done.stdout and "REJECTED in filter/INPUT" in done.stdout, done.stderr
    assert done.stdout.count("=>") == made.text.read_text().count("=>")
    content = everything(path)
    for address in (topology.NODE4, topology.CLIENT4, topology.GATEWAY4, *(pod.addr4 for pod in topology.PODS)):
        assert address.encode() not in content and socket.inet_aton(address) not in content, address
    for word in (b"scene-pod", b"pod-a", b"KUBE-S", b"http-proxy"):
        assert word not in content, word
