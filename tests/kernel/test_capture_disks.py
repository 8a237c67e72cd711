# SPDX-License-Identifier: Apache-2.0
"""A capture on a full or slow disk: the printed output does not depend on it, and missing events are reported."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.captured import read, send_requests, send_requests_slowly, until
from tests.kernel.recorder import Recorder
from tracer.capture.record import writer
from tracer.model.filter import Filter

pytestmark = pytest.mark.thorough

SMALL, BALLAST = 250_000, 150_000
WRITES, SLOW_ROOM = 2, 100_000
CGROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with little room, and a file on it that can be removed."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(place)], check=True)
    (place / "ballast").write_bytes(b"\0" * BALLAST)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory on the machine's disk. The disk takes few writes a second from this process, so a commit needs seconds. Fewer
    bytes than usual may wait to be written.

    The cgroup needs the memory controller, too: by it, writeback is charged to the process that made the page dirty.
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
    messages_path = recorder.directory / "full.messages"

    def work() -> None:
        until("The capture misses events", messages_path, send_requests_slowly)
        send_requests(3)
        (full_disk / "ballast").unlink()
        until("The capture is being written again", messages_path, send_requests_slowly)
        send_requests(3)

    recorded = recorder("full", work, Filter(), place=full_disk)
    messages, text = recorded.messages.read_text(), recorded.text.read_text()
    print(messages)
    reason = "it could not be written (database or disk is full). Tracing goes on."
    assert messages.count("The capture misses events from here on") == 1 and reason in messages
    resumed = f"The capture is being written again; {recorded.lost} events are not in it."
    assert resumed in messages and f"\n{recorded.lost} events are not in the capture." in messages
    replay = read(*recorded.files)
    assert replay.returncode == 0 and "did not end" not in replay.stderr, replay.stderr
    assert f"lost: {recorded.lost} events of capture: it could not be written" in replay.stdout
    assert f"{recorded.lost} lost ({recorded.lost} of capture)" in replay.stdout, replay.stdout[-500:]
    live, replayed = (each.count("REJECTED in filter/INPUT") for each in (text, replay.stdout))
    print(f"{live} refused, {replayed} of them in the capture, {recorded.summary.lost} events lost by the probes")
    assert 3 <= replayed <= live - 3, "the printed output must not depend on the disk"


def test_a_slow_disk(recorder: Recorder, slow_disk: Path) -> None:
    messages_path = recorder.directory / "slow.messages"

    def work() -> None:
        until("The capture misses events", messages_path, send_requests_slowly)
        send_requests(3)

    began = time.monotonic()
    recorded = recorder("slow", work, Filter(), place=slow_disk)
    messages, text = recorded.messages.read_text(), recorded.text.read_text()
    print(
        f"{time.monotonic() - began:.0f} s, {text.count('REJECTED in filter/INPUT')} refused, {recorded.lost} lost\n{messages}"
    )
    assert messages.count("The capture misses events from here on: the disk was too slow. Tracing goes on.") == 1
    assert f"\n{recorded.lost} events are not in the capture." in messages and not recorded.summary.lost, (
        "the slow disk must not make the probes lose events"
    )
    replay = read(*recorded.files)
    assert replay.returncode == 0 and "did not end" not in replay.stderr, replay.stderr
    assert f"{recorded.lost} lost ({recorded.lost} of capture)" in replay.stdout, replay.stdout[-500:]
