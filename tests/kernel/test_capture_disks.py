# SPDX-License-Identifier: Apache-2.0
"""A capture on a disk that is full, or slow: what is printed does not depend on it, and what is missing is said."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.captured import ask, calmly, read, until
from tests.kernel.recorder import Recorder
from tracer.capture.record import writer
from tracer.model.filter import Filter

pytestmark = pytest.mark.thorough

SMALL, BALLAST = 250_000, 150_000
WRITES, SLOW_ROOM = 2, 100_000
CGROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with little room, and something on it that can be removed."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(place)], check=True)
    (place / "ballast").write_bytes(b"\0" * BALLAST)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place on the machine's disk, which takes few writes a second of this process: a commit needs seconds. And less memory
    than there is for what waits for it.

    The cgroup needs memory, too: writeback is charged to who made the page dirty by it.
    """
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))
    place.chmod(0o755)
    disk = place.stat().st_dev
    (CGROUPS / "cgroup.subtree_control").write_text("+io +memory")
    slow = CGROUPS / "slow"
    slow.mkdir()
    (slow / "io.max").write_text(f"{os.major(disk)}:{os.minor(disk)} wiops={WRITES}")
    (slow / "cgroup.procs").write_text(str(os.getpid()))
    monkeypatch.setattr(writer, "ROOM", SLOW_ROOM)
    yield place
    (CGROUPS / "cgroup.procs").write_text(str(os.getpid()))
    slow.rmdir()
    shutil.rmtree(place)


def test_a_full_disk(recorder: Recorder, full_disk: Path) -> None:
    said_at = recorder.directory / "full.said"

    def work() -> None:
        until("The capture misses events", said_at, calmly)
        ask(3)
        (full_disk / "ballast").unlink()
        until("The capture is being written again", said_at, calmly)
        ask(3)

    made = recorder("full", work, Filter(), place=full_disk)
    said, text = made.said.read_text(), made.text.read_text()
    print(said)
    why = "it could not be written (database or disk is full). Tracing goes on."
    assert said.count("The capture misses events from here on") == 1 and why in said
    again = f"The capture is being written again; {made.lost} events are not in it."
    assert again in said and f"\n{made.lost} events are not in the capture." in said
    done = read(*made.files)
    assert done.returncode == 0 and "did not end" not in done.stderr, done.stderr
    assert f"lost: {made.lost} events of capture: it could not be written" in done.stdout
    assert f"{made.lost} lost ({made.lost} of capture)" in done.stdout, done.stdout[-500:]
    live, replayed = (each.count("REJECTED in filter/INPUT") for each in (text, done.stdout))
    print(f"{live} refused, {replayed} of them in the capture, {made.summary.lost} events lost by the probes")
    assert 3 <= replayed <= live - 3, "what is printed does not depend on the disk"


def test_a_slow_disk(recorder: Recorder, slow_disk: Path) -> None:
    said_at = recorder.directory / "slow.said"

    def work() -> None:
        until("The capture misses events", said_at, calmly)
        ask(3)

    began = time.monotonic()
    made = recorder("slow", work, Filter(), place=slow_disk)
    said, text = made.said.read_text(), made.text.read_text()
    print(f"{time.monotonic() - began:.0f} s, {text.count('REJECTED in filter/INPUT')} refused, {made.lost} lost\n{said}")
    assert said.count("The capture misses events from here on: the disk was too slow. Tracing goes on.") == 1
    assert f"\n{made.lost} events are not in the capture." in said and not made.summary.lost, (
        "the probes have lost nothing for it"
    )
    done = read(*made.files)
    assert done.returncode == 0 and "did not end" not in done.stderr, done.stderr
    assert f"{made.lost} lost ({made.lost} of capture)" in done.stdout, done.stdout[-500:]
