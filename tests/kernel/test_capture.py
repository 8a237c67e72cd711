# SPDX-License-Identifier: Apache-2.0
"""Captures of the running probes: what was printed is printed again, also of a part, and after the writer was killed."""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest

from scenes import topology
from tests.kernel.captured import WANTED, ask, calmly, read, same, until
from tests.kernel.recorder import Recorder
from tests.unit.capture.redact.test_records import everything
from tracer.capture.record.capture_files import RotationLimits
from tracer.capture.redact.records import RecordRedactor
from tracer.model.filter import Filter

pytestmark = pytest.mark.thorough

RING = 160_000


def test_live_output_is_printed_again(recorder: Recorder) -> None:
    made = recorder("plain", lambda: ask(2), WANTED)
    same(made)
    text = made.text.read_text()
    assert "DNAT" in text and "REJECTED in filter/INPUT" in text and "scene-pod-" in text


@pytest.mark.parametrize("sizes", [RotationLimits(rotate=30_000), RotationLimits(seconds=1.2)], ids=["size", "time"])
def test_rotated_files_are_one_capture(recorder: Recorder, sizes: RotationLimits) -> None:
    made = recorder("rotated", lambda: ask(12), WANTED, sizes=sizes)
    assert len(made.files) > 2
    same(made)
    for path in made.files[1:3]:
        alone = read(path)
        assert alone.returncode == 0 and "DNAT" in alone.stdout and "Traceback" not in alone.stderr, alone.stderr


def test_a_ring_keeps_the_last(recorder: Recorder) -> None:
    made = recorder("ring", lambda: ask(40), Filter(), sizes=RotationLimits(ring=RING))
    (path,) = made.files
    assert path.stat().st_size < 1.5 * RING, "what explains packets stays, and is much of so small a ring"
    done = read(path)
    assert done.returncode == 0, done.stderr
    live, again = made.text.read_text().split("\n\n"), done.stdout.split("\n\n")
    assert len(again) < len(live) and again[-10:-1] == live[-10:-1]
    assert "Service default/http-proxy" in done.stdout, "what explains packets is not forgotten"


def test_killed(recorder: Recorder, tmp_path: Path) -> None:
    """In a process of its own, with these probes."""

    def work() -> None:
        while True:
            calmly()

    child = os.fork()
    if not child:
        with suppress(BaseException):
            recorder("killed", work, WANTED)
        os._exit(1)
    printed = tmp_path / "killed.text"
    until("REJECTED in filter/INPUT", printed, lambda: time.sleep(0.5))
    before = printed.read_text().split("\n\n")[:-1]
    # A chunk is written every second; this machine takes its time.
    time.sleep(4)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    done = read(tmp_path / "killed.k8st")
    assert done.returncode == 0 and "did not end as it should" in done.stderr, done.stderr
    again = done.stdout.split("\n\n")
    print(f"{len(before)} blocks four seconds before the kill, {len(again)} read back")
    assert len(before) >= 6 and again[: len(before)] == before


def test_redacted_while_it_is_written(recorder: Recorder) -> None:
    """Not an address, a name or a rule of this machine is in the file; it is read as any other."""
    made = recorder("redacted", lambda: ask(2), WANTED, redacted=RecordRedactor())
    (path,) = made.files
    done = read(path)
    assert done.returncode == 0 and "DNAT" in done.stdout and "REJECTED in filter/INPUT" in done.stdout, done.stderr
    assert done.stdout.count("=>") == made.text.read_text().count("=>")
    there = everything(path)
    for address in (topology.NODE4, topology.CLIENT4, topology.GATEWAY4, *(pod.addr4 for pod in topology.PODS)):
        assert address.encode() not in there and socket.inet_aton(address) not in there, address
    for word in (b"scene-pod", b"pod-a", b"KUBE-S", b"http-proxy"):
        assert word not in there, word
