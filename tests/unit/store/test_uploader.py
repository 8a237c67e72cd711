# SPDX-License-Identifier: Apache-2.0
"""Uploads to moto's S3 server, and what they do when it fails."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("moto", reason="moto[server] is not installed: pip install '.[fleet]'")

from tests.support import faulty_s3
from tests.support.faulty_s3 import FaultyS3
from tests.support.store_rows import losses, numbers
from tests.support.waiting import until
from tracer.errors import StoreUnreachable
from tracer.store.bucket import Bucket, is_hidden
from tracer.store.store_writer import StoreWriter


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def server() -> Iterator[FaultyS3]:
    with faulty_s3.running() as door:
        yield door


@pytest.fixture
def s3(server: FaultyS3, request: pytest.FixtureRequest) -> Iterator[FaultyS3]:
    """The server with an empty store."""
    server.url = f"s3://{faulty_s3.BUCKET}/{request.node.name.replace('[', '-').rstrip(']')}"
    server.fault = ""
    yield server
    server.fault = ""


def writer_of(s3: FaultyS3, spool: Path, clock: Clock) -> StoreWriter:
    return StoreWriter(Bucket(s3.url), spool, "node-a", clock=clock, has_thread=False)


def test_rows_come_to_the_bucket(s3: FaultyS3, tmp_path: Path) -> None:
    writer = writer_of(s3, tmp_path, Clock())
    writer.add(losses(10))
    assert writer.close(1) == 0
    assert numbers(Bucket(s3.url)) == list(range(10))
    (found,) = Bucket(s3.url).objects("")
    assert found.path == f"losses/date=2026-11-26/hour=02/node=node-a/{writer.run}-000001.v1.parquet"
    assert not list(tmp_path.iterdir()), "nothing stays in the spool"


@pytest.mark.parametrize("fault", ["busy", "half", "skewed", "away", "unanswered"])
def test_a_fault_delays_rows_and_loses_none(s3: FaultyS3, tmp_path: Path, fault: str) -> None:
    """After the fault each row is there once, also where the bucket had it and its answer was lost."""
    clock = Clock()
    writer = writer_of(s3, tmp_path, clock)
    writer.add(losses(10))
    writer.commit()
    writer.rotate()
    s3.fault = fault
    assert not writer.upload() and writer.uploader.failures == 1 and writer.uploader.problem.startswith("losses/")
    writer.add(losses(10, first=10))
    writer.commit()
    writer.rotate()
    writes = s3.writes
    assert not writer.upload() and s3.writes == writes, "the pause is kept"
    s3.fault = ""
    if fault == "half":
        with pytest.raises(StoreUnreachable):
            numbers(Bucket(s3.url))  # nothing of a half write is visible: the store is still empty
    clock.now += 61
    assert writer.upload() and writer.uploader.problem == ""
    assert numbers(Bucket(s3.url)) == list(range(20)) and not writer.read_lost()
    assert writer.close(1) == 0


def test_a_slow_bucket_holds_nobody_up(s3: FaultyS3, tmp_path: Path) -> None:
    """The thread that traces only writes to the local disk."""
    s3.fault = "slow"
    clock = Clock()
    with_thread = StoreWriter(Bucket(s3.url), tmp_path, "node-a", clock=clock)
    with_thread.add(losses(5))
    with_thread.commit()
    with_thread.rotate()
    with_thread.add(losses(5, first=5))
    with_thread.commit()
    assert with_thread.accepted["losses"] == 10
    assert with_thread.close(30) == 0 and numbers(Bucket(s3.url)) == list(range(10))


def test_the_end_of_a_run_tries_again_while_there_is_time(s3: FaultyS3, tmp_path: Path) -> None:
    writer = StoreWriter(Bucket(s3.url), tmp_path, "node-a")
    s3.fault = "skewed"
    writer.add(losses(5))

    def mend() -> None:
        until(lambda: writer.uploader.failures > 0)
        s3.fault = ""

    threading.Thread(target=mend).start()
    assert writer.close(30) == 0 and writer.uploader.failures > 0
    assert numbers(Bucket(s3.url)) == list(range(5))


def test_a_large_object_is_whole_or_not_there(s3: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Larger than the part of a multipart upload. pyarrow completes a broken upload when its stream is freed, later."""
    monkeypatch.setattr("tracer.store.bucket.REQUEST_SECONDS", 1.0)
    bucket = Bucket(s3.url)
    content = bytes(range(256)) * (12 << 12)
    s3.fault = "busy"
    with pytest.raises(StoreUnreachable):
        bucket.put("x/large.v1.parquet", content)
    s3.fault = ""
    gc.collect()
    assert [each.path for each in bucket.objects("") if not is_hidden(each.path)] == []
    bucket.put("x/large.v1.parquet", content)
    assert bucket.read("x/large.v1.parquet") == content
    assert [each.path for each in bucket.objects("")] == ["x/large.v1.parquet"]


def test_a_bucket_that_does_not_exist(s3: FaultyS3) -> None:
    with pytest.raises(StoreUnreachable):
        numbers(Bucket("s3://there-is-none/x"))
