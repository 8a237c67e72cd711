# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while a capture is read: each command ends with one sentence and status 130, and leaves no partial file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.fuzz.files import Parts, taken_apart, written
from tests.support import captures
from tests.support.waiting import PATIENCE, until
from tracer.capture.format.codec import pack, to_json
from tracer.capture.format.record_layout import pack as pack_slots
from tracer.capture.format.schema import Record

ROOT = Path(__file__).parents[3]
MANY, READ = 20_000, 1 << 20
"""Batches of the long capture, and bytes of a file that show that it is being read."""
ENDLESS = "SELECT count(*) FROM range(1000000000000000) a WHERE a.range % 7 = 3"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    path = tmp_path_factory.mktemp("base") / "a.k8st"
    return taken_apart(captures.capture(path, captures.some_batches(2)).path)


def stored(base: Parts, times: int, records: int) -> bytes:
    """A capture with its batches repeated `times` times, and `records` records in its last batch."""
    meta = [(name, pack(value)) for name, value in base.meta]
    rows = [(turn, kind, key, pack(body)) for turn, kind, key, body in base.records if kind != Record.END]
    length = max(b[0] + len(b[4]) for b in base.batches) + 1
    packed = [(b, pack(b[4]), pack_slots(b[5])) for b in base.batches if len(b[5])]
    batches = [
        (b[0] + n * length, b[1], b[2], b[3], turns, slots) for n in range(times) for b, turns, slots in packed
    ]  # fmt: skip
    answer = pack([to_json(("process", 48213)), 1, to_json((219, "nginx"))])
    rows += [(times * length, Record.ANSWER, "x", answer)] * records
    return written([meta, rows, batches])


@pytest.fixture(scope="module")
def long(base: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "long.k8st"
    path.write_bytes(stored(base, MANY, 0))
    return path


@pytest.fixture(scope="module")
def short(base: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("short") / "short.k8st"
    path.write_bytes(stored(base, 1, 0))
    return path


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command; its output goes to files, so that it never waits for a reader."""
    running: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        with (tmp_path / "out").open("w") as out, (tmp_path / "errors").open("w") as errors:
            command = [sys.executable, "-m", "tracer", *words]
            where = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
            running.append(subprocess.Popen(command, cwd=tmp_path, stdout=out, stderr=errors, env=where, text=True))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


def has_read(process: subprocess.Popen[str], path: Path) -> bool:
    """Whether the process is in the middle of a file: the file is open, and much was read."""
    assert process.poll() is None, "it ended before it was interrupted"
    read = int(Path(f"/proc/{process.pid}/io").read_text().split()[1])
    return has_open(process, path.name) and read > READ + path.stat().st_size // 50


def has_open(process: subprocess.Popen[str], name: str) -> bool:
    assert process.poll() is None, "it ended before it was interrupted"
    fds = Path(f"/proc/{process.pid}/fd")
    for fd in fds.iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            if os.path.basename(os.readlink(fd)) == name:
                return True
    return False


def signals_waiting(process: subprocess.Popen[str]) -> bool:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return any(line.startswith(("SigPnd", "ShdPnd")) and int(line.split()[1], 16) for line in lines)


def interrupted(
    process: subprocess.Popen[str], tmp_path: Path, path: Path, name: str = "", shows: bool = False, is_again: bool = False
) -> str:
    """Ends the process by Ctrl-C, as a terminal does; returns its output.

    Args:
        process: The command.
        tmp_path: Folder with its output.
        path: The capture that it reads.
        name: What it reads, if that is more than the capture.
        shows: stderr may have other lines first.
        is_again: It got a Ctrl-C before. It may already be exiting, when SIGINT has its default action again and kills it.
    """
    process.send_signal(signal.SIGINT)
    status = process.wait(PATIENCE)
    assert status == 130 or (is_again and status == -signal.SIGINT)
    errors = (tmp_path / "errors").read_text().splitlines(keepends=True)
    assert errors[-1] == f"k8snet-trace: Interrupted while reading {name or path}: the answer is not complete.\n"
    assert shows or len(errors) == 1, errors
    assert not any("Traceback" in line for line in errors), errors
    return (tmp_path / "out").read_text()


COMMANDS = {
    "stats": ("stats", "FILE"),
    "findings": ("findings", "FILE"),
    "diff": ("diff", "FILE", "FILE"),
    "query": ("query", "FILE", "SELECT count(*) FROM packets"),
    "export": ("export", "FILE", "--to", "jsonl", "made"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_partly_read_capture_gives_no_result(
    command: str, long: Path, started: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    process = started(*(str(long) if word == "FILE" else word for word in COMMANDS[command]))
    until(lambda: has_read(process, long))
    name = f"{long} and {long}" if command == "diff" else str(long)
    assert interrupted(process, tmp_path, long, name) == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == ["errors", "out"]


def test_packets_already_read_are_shown(long: Path, started: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    process = started("-r", str(long))
    until(lambda: has_read(process, long) and (tmp_path / "out").stat().st_size > READ)
    assert " events, 17 lost" in interrupted(process, tmp_path, long, shows=True).splitlines()[-1]


def test_an_interrupt_within_one_batch(
    base: Parts, started: Callable[..., subprocess.Popen[str]], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """A file may have all its records in one batch, and a stop request is checked only between batches."""
    path = tmp_path_factory.mktemp("turn") / "turn.k8st"
    path.write_bytes(stored(base, 1, 200_000))
    process = started("-r", str(path))
    until(lambda: has_read(process, path))
    process.send_signal(signal.SIGINT)
    until(lambda: not signals_waiting(process))
    interrupted(process, tmp_path, path, shows=True, is_again=True)


def test_an_endless_query(short: Path, started: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    process = started("query", str(short), ENDLESS)
    until(lambda: has_open(process, "capture.duckdb"))
    assert interrupted(process, tmp_path, short) == ""
