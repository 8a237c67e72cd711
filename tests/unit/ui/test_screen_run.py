# SPDX-License-Identifier: Apache-2.0
"""A run with its screen on a pseudo terminal: how it ends, what stays on the terminal, and that the terminal is restored."""

from __future__ import annotations

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import captures
from tests.support.pseudo_terminal import PseudoTerminal
from tracer import log
from tracer.errors import DamagedCapture
from tracer.pipeline.shutdown import StopRequest
from tracer.ui import screen_run
from tracer.ui.feed import ScreenFeed
from tracer.ui.screen_run import ScreenRun

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 60.0
OPENS, LEAVES = "\x1b[?1049h", "\x1b[?1049l"


@pytest.fixture
def terminal() -> Iterator[PseudoTerminal]:
    one = PseudoTerminal()
    termios.tcsetwinsize(one.fd, (24, 80))
    yield one
    one.close()


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    return captures.capture(tmp_path / "a.k8st", captures.some_batches(20)).path


@contextmanager
def started(capture: Path, terminal: PseudoTerminal, text: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command on a terminal, when the screen shows a text; it is killed at the end of the block.

    It does not ignore SIGHUP, also where the tests do, because they run under nohup.
    """
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    process = subprocess.Popen(
        [sys.executable, "-m", "tracer", "ui", "-r", str(capture), *words],
        stdin=terminal.fd, stdout=terminal.fd, stderr=terminal.fd,
        cwd=ROOT, env=os.environ | {"TERM": "xterm-256color"}, start_new_session=True,
    )  # fmt: skip
    signal.signal(signal.SIGHUP, before)
    try:
        until = time.monotonic() + SECONDS
        while text not in terminal.text:
            assert process.poll() is None and time.monotonic() < until, terminal.text
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("way", [b"q", b"\x03", signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_ends_and_restores_the_terminal(capture: Path, terminal: PseudoTerminal, way: bytes | signal.Signals) -> None:
    settings = termios.tcgetattr(terminal.fd)
    with started(capture, terminal, "20 packets") as process:
        if isinstance(way, bytes):
            terminal.type(way)
        else:
            process.send_signal(way)
        assert process.wait(SECONDS) == 0
    assert termios.tcgetattr(terminal.fd) == settings
    shown, left, after = terminal.text.rpartition(LEAVES)
    assert OPENS in shown and left and "20 packets in" in after and "10 dropped" in after and "Traceback" not in after


def test_a_damaged_capture_is_shown_and_gives_its_status(capture: Path, terminal: PseudoTerminal) -> None:
    with sqlite3.connect(capture) as database:
        database.execute("UPDATE records SET crc = crc + 1 WHERE kind = 'answer'")
    with started(capture, terminal, "The run has ended") as process:
        terminal.type(b"q")
        assert process.wait(SECONDS) == DamagedCapture.status
    after = " ".join(terminal.text.rpartition(LEAVES)[2].split())
    assert "k8snet-trace: " in after and "could not be read" in after and "Traceback" not in terminal.text


def test_a_terminal_that_is_closed_ends_it(capture: Path) -> None:
    terminal = PseudoTerminal()
    termios.tcsetwinsize(terminal.fd, (24, 80))
    with started(capture, terminal, "20 packets") as process:
        terminal.hang_up()
        assert process.wait(SECONDS) == 0


def test_the_error_of_the_run_is_raised_and_the_run_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    feed, stop, calls = ScreenFeed(), StopRequest(0), []

    class Shown:
        failure = None

        def __init__(self, *_: object) -> None: ...

        def run(self) -> None:
            assert feed.ended.wait(SECONDS)

    def complete() -> int:
        calls.append("run")
        raise OSError("the ring is gone")

    monkeypatch.setattr(screen_run, "TraceScreen", Shown)
    with pytest.raises(OSError, match="the ring is gone"):
        ScreenRun(feed).drive(complete, stop)
    assert calls == ["run"] and stop.is_requested


def test_the_error_of_the_screen_is_raised_after_the_end_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    feed, stop, ended = ScreenFeed(), StopRequest(0), []

    class Broken:
        def __init__(self, *_: object) -> None:
            raise RuntimeError("no screen")

    def complete() -> int:
        while not stop.is_requested:
            time.sleep(0.01)
        ended.append(True)
        return 0

    monkeypatch.setattr(screen_run, "TraceScreen", Broken)
    with pytest.raises(RuntimeError, match="no screen"):
        ScreenRun(feed).drive(complete, stop)
    assert ended == [True], "what the run holds is released first"


def test_the_log_waits_for_the_end_of_the_screen(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(screen_run, "MOST_LOG_LINES", 3)
    logger, before = logging.getLogger(log.ROOT), logging.getLogger(log.ROOT).handlers
    log.enable(sys.stderr)
    try:
        with screen_run._held_log():
            for number in range(9):
                logger.debug("line %d", number)
            assert capfd.readouterr().err == ""
        printed = capfd.readouterr().err
        assert "line 8" in printed and "line 5" not in printed
    finally:
        logger.handlers = before
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


def test_the_log_of_a_real_run_is_below_the_screen(capture: Path, terminal: PseudoTerminal) -> None:
    with started(capture, terminal, "20 packets", "--debug") as process:
        terminal.type(b"q")
        assert process.wait(SECONDS) == 0
    shown, _, after = terminal.text.rpartition(LEAVES)
    assert "evicted" in after and "evicted" not in shown.partition(OPENS)[2]
