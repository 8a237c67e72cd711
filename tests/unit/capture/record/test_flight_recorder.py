# SPDX-License-Identifier: Apache-2.0
"""Captures around findings: what is in them, and what bounds the memory, the directory and the disk."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import captures
from tests.support.captures import read
from tracer.capture.format import record_layout
from tracer.capture.format.codec import pack
from tracer.capture.record import flight_recorder
from tracer.capture.record.capture_files import CaptureFiles
from tracer.capture.record.dump_counts import DumpCounts
from tracer.capture.record.flight_recorder import (
    AFTER_SECONDS,
    KIND_SECONDS,
    RING_SECONDS,
    UNFINISHED,
    DumpLimits,
    FlightRecorder,
)
from tracer.capture.replay.capture_reader import CaptureReader
from tracer.errors import OutputNotWritten
from tracer.util.evictions import evictions


class Clock:
    """A clock that a test sets, s."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def meta(tmp_path: Path) -> dict[str, Any]:
    """The fixed values of a recorded run."""
    made = captures.capture(tmp_path / "other.k8st")
    with CaptureReader(str(made.path)) as capture:
        return {name: value for name, value in capture.meta.items() if name != "parts"}


def recorder(tmp_path: Path, meta: dict[str, Any], clock: Clock, **limits: int) -> tuple[FlightRecorder, DumpCounts]:
    counts = DumpCounts()
    made = FlightRecorder(tmp_path / "dumps", counts, DumpLimits(**limits), clock)
    made.describe(meta)
    return made, counts


def insert(to: FlightRecorder, number: int, *records: tuple[Any, ...]) -> None:
    """A transaction with one batch with one packet."""
    slots = record_layout.pack(captures.slots(captures.refused(number, number * 1000)), 1)
    to.insert(list(records), (number, number, number, 2, pack([[number * 1000, 6, 0]]), slots))


def dumped(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "dumps").iterdir())


def evicted(name: str) -> int:
    return evictions.totals().get(name, 0)


def test_the_capture_of_a_run_shows_its_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole recorded run with a flight recorder in place of files."""
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    monkeypatch.setattr("tracer.capture.record.buffer.CHUNK_SECONDS", 0.0)
    counts = DumpCounts()
    to = FlightRecorder(tmp_path / "dumps", counts)
    made = captures.capture(tmp_path / "dumps", captures.some_batches(8), form="json", recorder=to)
    found = [each.name for each in made.summary.findings]
    (path,), ((finding, _),) = dumped(tmp_path), [key for key, _ in counts.read().items() if key[1] == "written"]
    assert found and finding in found and sum(counts.read().values()) == len(found)
    assert path.name.startswith("finding-") and finding in path.name
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and f"The capture of the finding {finding} is {path}" in made.messages
    totals, text = read(path)
    assert [each.cause for each in totals.findings] == [each.cause for each in made.summary.findings]
    assert '"type":"finding"' in text and '"chain_path":"INPUT 1"' in text and totals.packets == made.summary.packets
    with CaptureReader(str(path)) as capture:
        assert capture.ended() is not None and any("its run went on" in str(row[3]) for row in capture.records())


def test_it_is_written_some_seconds_after_the_finding(tmp_path: Path, meta: dict[str, Any], clock: Clock) -> None:
    to, counts = recorder(tmp_path, meta, clock)
    for number in range(1, 20):
        insert(to, number)
        clock.now += 1
        if number == 10:
            to.request("mtu")
        assert bool(dumped(tmp_path)) == (number > 10 + AFTER_SECONDS)
    (path,) = dumped(tmp_path)
    assert read(path)[0].packets == 10 + AFTER_SECONDS + 1 and counts.read() == {("mtu", "written"): 1}


def test_what_is_older_stays_only_as_what_explains_later_packets(tmp_path: Path, meta: dict[str, Any], clock: Clock) -> None:
    to, _ = recorder(tmp_path, meta, clock)
    insert(to, 1, (1, "answer", "a", b"[1,1,1]"), (1, "note", "", b'"old"'))
    clock.now += RING_SECONDS + 1
    insert(to, 2, (2, "answer", "b", b"[1,1,2]"))
    to.request("mtu")
    to.close()
    (path,) = dumped(tmp_path)
    with CaptureReader(str(path)) as capture:
        assert [row[:3] for row in capture.records()][:2] == [(1, "answer", "a"), (2, "answer", "b")]
        assert [batch.first_batch for batch in capture.chunks()] == [2] and capture.meta["repeated"] == 1


def test_the_memory_is_bounded_and_evictions_are_counted(tmp_path: Path, meta: dict[str, Any], clock: Clock) -> None:
    to, _ = recorder(tmp_path, meta, clock, ring_bytes=20_000)
    before = evicted("transactions before a finding")
    for number in range(1, 500):
        insert(to, number, (number, "note", "", b"x" * 500))
        assert to._bytes == sum(each.size for each in to._ring) <= 20_000
    assert evicted("transactions before a finding") - before == 499 - len(to._ring) > 400
    insert(to, 500, (500, "note", "", b"x" * 50_000))
    assert len(to._ring) == 1, "the newest one is kept in any case"


def test_one_capture_for_each_kind_in_a_while(tmp_path: Path, meta: dict[str, Any], clock: Clock) -> None:
    to, counts = recorder(tmp_path, meta, clock)
    insert(to, 1)
    to.request("mtu")
    to.request("syn_dropped")
    to.request("mtu")
    assert counts.read() == {("syn_dropped", "joined"): 1, ("mtu", "joined"): 1}
    clock.now += AFTER_SECONDS
    insert(to, 2)
    to.request("mtu")
    to.request("syn_dropped")
    assert counts.read() == {
        ("syn_dropped", "joined"): 1, ("mtu", "joined"): 1, ("mtu", "written"): 1,
        ("mtu", "limited"): 1, ("syn_dropped", "limited"): 1,
    }  # fmt: skip
    clock.now += KIND_SECONDS
    to.request("mtu")
    clock.now += AFTER_SECONDS
    insert(to, 3)
    assert counts.read()["mtu", "written"] == 2 == len(dumped(tmp_path))


@pytest.mark.parametrize("limits", [{"most_files": 3}, {"most_bytes": 70_000}], ids=["files", "bytes"])
def test_the_directory_is_bounded(tmp_path: Path, meta: dict[str, Any], clock: Clock, limits: dict[str, int]) -> None:
    """The oldest captures are removed; a file of others stays."""
    to, _ = recorder(tmp_path, meta, clock, **limits)
    (tmp_path / "dumps/mine.k8st").write_text("")
    before, names = evicted("captures of findings"), []
    for number in range(1, 9):
        insert(to, number)
        to.request(f"finding_{number}")
        clock.now += AFTER_SECONDS
        insert(to, 100 + number)
        names.append(next(path.name for path in dumped(tmp_path) if f"finding_{number}." in path.name))
        os.utime(tmp_path / "dumps" / names[-1], (number, number))
    left = [path.name for path in dumped(tmp_path)]
    assert "mine.k8st" in left and names[-1] in left and names[0] not in left
    assert len(left) - 1 == 8 - (evicted("captures of findings") - before)
    sizes = [path.stat().st_size for path in dumped(tmp_path)]
    assert len(left) - 1 <= limits.get("most_files", 8) and sum(sizes) <= limits.get("most_bytes", 10**9)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """A list with one entry: whether the disk is full. Each second transaction of a file meets it."""
    is_full, insert_rows = [True], CaptureFiles.insert

    def insert(files: CaptureFiles, records: Any, batch: Any) -> None:
        if is_full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        insert_rows(files, records, batch)

    monkeypatch.setattr(CaptureFiles, "insert", insert)
    yield is_full


def test_a_full_disk_is_said_once_and_counted(
    tmp_path: Path, meta: dict[str, Any], clock: Clock, full_disk: list[bool]
) -> None:
    to, counts = recorder(tmp_path, meta, clock)
    for number in range(1, 6):
        full_disk[0] = number != 4
        to.request("mtu")
        clock.now += KIND_SECONDS + 1
        insert(to, number)
    assert counts.read() == {("mtu", "failed"): 4, ("mtu", "written"): 1}
    (path,) = dumped(tmp_path)
    sentence = f"The capture of the finding mtu was not written to {tmp_path}/dumps: No space left on device"
    assert to.messages() == [sentence, f"The capture of the finding mtu is {path}", sentence], "again after it has worked"
    assert to.messages() == []


def test_what_a_killed_run_has_left_is_removed(tmp_path: Path, meta: dict[str, Any], clock: Clock) -> None:
    (tmp_path / "dumps").mkdir(mode=0o700)
    for name in (f"{UNFINISHED}a.k8st", f"{UNFINISHED}a.k8st-journal", "finding-a.k8st"):
        (tmp_path / "dumps" / name).write_text("")
    recorder(tmp_path, meta, clock)
    assert [path.name for path in dumped(tmp_path)] == ["finding-a.k8st"]


def test_a_directory_that_cannot_be_used(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputNotWritten, match=r"The directory .*/file cannot be used for --dump: "):
        FlightRecorder(tmp_path / "file", DumpCounts(), now=clock)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(OutputNotWritten, match="is not safe: everybody may write to"):
        FlightRecorder(tmp_path / "open", DumpCounts(), now=clock)


def test_the_bounds_of_the_page_are_those_of_the_code() -> None:
    page = (Path(__file__).parents[4] / "docs/agent.md").read_text()
    mb = flight_recorder.RING_BYTES // 10**6, flight_recorder.MOST_BYTES // 10**6
    assert f"{mb[0]}M" in page and f"{flight_recorder.MOST_FILES} captures and {mb[1]} MB" in page
    assert f"{RING_SECONDS:.0f} s" in page and f"{AFTER_SECONDS:.0f} s" in page and f"{KIND_SECONDS / 60:.0f} minutes" in page
