# SPDX-License-Identifier: Apache-2.0
"""The spool: a store that is away for an hour, a full disk, kill -9, a bound, two agents on one node."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from tests.support.store_rows import local, losses, numbers
from tracer.errors import StoreUnreachable
from tracer.store import segment
from tracer.store.bucket import Bucket
from tracer.store.spool import FULL
from tracer.store.store_writer import SEGMENT_SECONDS, StoreWriter

ROOT = Path(__file__).resolve().parents[3]


class AbsentBucket(Bucket):
    """A store that is away until `is_away` is False."""

    is_away, attempts = True, 0

    def put(self, path: str, content: bytes) -> None:
        self.attempts += 1
        if self.is_away:
            raise StoreUnreachable(f"{path} cannot be written: no answer.")
        super().put(path, content)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def absent(directory: Path) -> AbsentBucket:
    return AbsentBucket(f"file://{directory}")


def test_the_store_is_away_for_an_hour(tmp_path: Path) -> None:
    """A row each second, uploads tried each second: nothing is lost, and the pauses become longer, up to a minute."""
    clock, bucket = Clock(), absent(tmp_path / "s")
    writer = StoreWriter(bucket, tmp_path / "spool", "a", clock=clock, has_thread=False)
    for second in range(3600):
        clock.now += 1
        writer.add(losses(1, first=second))
        writer.commit()
        writer.upload()
    assert not (tmp_path / "s").exists() and 55 <= bucket.attempts <= 70
    assert len(list((tmp_path / "spool").rglob("*.segment.gz"))) >= 3600 // SEGMENT_SECONDS - 1, "what waits is compressed"
    bucket.is_away = False
    clock.now += 60
    writer.upload()
    assert writer.close(1) == 0
    assert numbers(local(tmp_path / "s")) == list(range(3600)) and not writer.lost


def test_the_spool_has_a_bound_and_what_it_drops_is_counted(tmp_path: Path) -> None:
    clock, bucket = Clock(), absent(tmp_path / "s")
    writer = StoreWriter(bucket, tmp_path / "spool", "a", most_bytes=4000, clock=clock, has_thread=False)
    for batch in range(40):
        writer.add(losses(50, first=50 * batch))
        writer.commit()
        writer.rotate()
        writer.upload()
        size = sum(each.stat().st_size for each in (tmp_path / "spool").rglob("*.segment*"))
        assert size <= 4000
        os.utime(next(iter((tmp_path / "spool").rglob("*.segment*")), tmp_path))
    lost = writer.read_lost()
    bucket.is_away = False
    clock.now += 61
    writer.upload()
    found = numbers(local(tmp_path / "s"))
    assert list(lost) == [("losses", FULL)] and 0 < lost["losses", FULL] < 2000
    assert len(found) + lost["losses", FULL] == 2000
    writer.close(1)


def test_a_full_disk_loses_whole_batches_and_counts_them(tmp_path: Path) -> None:
    """The kernel takes a part of the batch only: it is undone, and the rows before and after are there."""
    clock = Clock()
    writer = StoreWriter(local(tmp_path / "s"), tmp_path / "spool", "a", clock=clock, has_thread=False)
    writer.add(losses(100))
    assert writer.commit()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (next((tmp_path / "spool").rglob("*.segment")).stat().st_size + 100, hard))
    try:
        writer.add(losses(100, first=100))
        assert not writer.commit()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    writer.add(losses(100, first=200))
    assert writer.commit()
    assert writer.close(1) == 0
    assert numbers(local(tmp_path / "s")) == [*range(100), *range(200, 300)]
    ((table, why), count), *others = writer.lost.items()
    assert (table, count, others) == ("losses", 100, []) and "File too large" in why


WRITE_FOR_EVER = """
import sys
from pathlib import Path
from tests.support.store_rows import losses
from tracer.store.bucket import Bucket
from tracer.store.store_writer import StoreWriter

class Nowhere(Bucket):
    def put(self, path, content):
        raise OSError

writer = StoreWriter(Nowhere("file:///nowhere"), Path(sys.argv[1]), "a", has_thread=False)
number = 0
while True:
    writer.add(losses(7, first=number))
    number += 7
    print(number - 7, flush=True)
    assert writer.commit()
    print(number, flush=True)
"""


@pytest.mark.parametrize("lines", [2, 31, 500])
def test_kill_9_loses_nothing_that_was_recorded(tmp_path: Path, lines: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITE_FOR_EVER, str(tmp_path / "spool")], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert child.stdout
    for _ in range(lines):
        child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    said = [int(line) for line in child.stdout.read().split()]
    child.wait()
    child.stdout.close()
    writer = StoreWriter(local(tmp_path / "s"), tmp_path / "spool", "a", has_thread=False)
    assert writer.adopted == 1
    assert writer.close(1) == 0
    found = numbers(local(tmp_path / "s"))
    assert found == list(range(len(found)))
    if said:
        assert len(found) + sum(writer.lost.values()) >= said[-1] and len(found) <= said[-1] + 7
    assert not list((tmp_path / "spool").iterdir())


def test_a_batch_cut_off_at_each_byte_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "000001.segment"
    written = segment.Segment(path, "run", "a")
    written.append(losses(3))
    before = written.size
    written.append(losses(4, first=3))
    written.close()
    whole = path.read_bytes()
    for size in range(before, len(whole) + 1):
        path.write_bytes(whole[:size])
        content = segment.read(path)
        assert content and [row.values for row in content.rows[:3]] == [row.values for row in losses(3)]
        rows, lost = len(content.rows) - 3, content.lost
        if size == before or size == len(whole):
            assert lost == 0 and rows == (4 if size > before else 0)
        else:
            assert rows + lost == 4 or (rows, lost) == (0, 1), "not even the number of rows is there"


def test_two_agents_on_one_node_do_not_disturb_each_other(tmp_path: Path) -> None:
    """At the same time, with the same spool: a spool in use is not taken over, and no object is overwritten."""
    first, second = (StoreWriter(local(tmp_path / "s"), tmp_path / "spool", "a", has_thread=False) for _ in range(2))
    assert second.adopted == 0
    for n in range(5):
        first.add(losses(10, first=20 * n))
        second.add(losses(10, first=20 * n + 10))
        for each in (first, second):
            each.commit()
            each.rotate()
            assert each.upload()
    assert first.close(1) == second.close(1) == 0
    assert numbers(local(tmp_path / "s")) == list(range(100))
    assert len(list((tmp_path / "s").rglob("*.parquet"))) == 10


def test_a_segment_that_cannot_be_read_is_counted_and_removed(tmp_path: Path) -> None:
    dead = tmp_path / "spool/20260101T000000-1-dead"
    dead.mkdir(parents=True)
    (dead / "000001.segment").write_bytes(b"\x00\xff not ours\n")
    writer = StoreWriter(local(tmp_path / "s"), tmp_path / "spool", "a", has_thread=False)
    assert writer.close(1) == 0 and sum(writer.lost.values()) == 1 and not dead.exists()
