# SPDX-License-Identifier: Apache-2.0
"""What a start says: one line that changes on a terminal, few lines elsewhere."""

from __future__ import annotations

import io
import re
import sys
import threading
import time

import pytest

from tracer.commands.start_notes import StartNotes, process_seconds
from tracer.util.worker import user_warnings


class Stream(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def test_few_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Stream(False))
    monkeypatch.setattr("tracer.commands.start_notes.LONG_SECONDS", 0.0)
    with StartNotes() as notes:
        notes.report("reading the kernel's types")
        notes.report("compiling 31 programs, 0 of 2 parts")
        notes.report("compiling 31 programs, 1 of 2 parts")
        notes.warn("The programs are compiled anew: x\n is damaged.")
        notes.report("attaching probes")
        notes.ready()
    first, warning, last = stream.getvalue().splitlines()
    assert first == "Starting: compiling 31 programs for this kernel."
    assert warning == "The programs are compiled anew: x\\n is damaged."
    assert re.fullmatch(r"Ready after \d+\.\d s\.", last)


def test_a_short_start_says_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Stream(False))
    monkeypatch.setattr("tracer.commands.start_notes.LONG_SECONDS", 1e9)
    with StartNotes() as notes:
        notes.report("attaching probes")
        notes.ready()
    assert stream.getvalue() == ""


def test_one_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Stream(True))
    with StartNotes() as notes:
        assert "Starting: loading (" in stream.getvalue(), "before anything else is imported"
        notes.report("compiling 31 programs, 1 of 2 parts")
        notes.warn("A sentence.")
        notes.ready()
        notes.report("nothing more")
    shown = [line.rpartition("\r\x1b[K")[2] for line in stream.getvalue().split("\n")]
    assert shown[0] == "A sentence." and shown[1].startswith("Ready after ")
    assert stream.getvalue().count("\n") == 2 and "Starting: compiling 31 programs, 1 of 2 parts (" in stream.getvalue()


def test_the_line_shows_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Stream(True))
    monkeypatch.setattr("tracer.commands.start_notes.REPAINT_SECONDS", 0.01)
    with StartNotes() as notes:
        notes.report("attaching probes")
        until = time.monotonic() + 10
        while stream.getvalue().count("attaching probes") < 3 and time.monotonic() < until:
            time.sleep(0.01)
    assert stream.getvalue().count("attaching probes") >= 3


def test_the_thread_survives_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Stream(True))
    monkeypatch.setattr("tracer.commands.start_notes.REPAINT_SECONDS", 0.01)
    paint, failures = StartNotes._paint, [True]

    def fails_once(self: StartNotes) -> None:
        if threading.current_thread() is not threading.main_thread() and failures:
            failures.clear()
            raise ValueError("x")
        paint(self)

    monkeypatch.setattr(StartNotes, "_paint", fails_once)
    with StartNotes() as notes:
        notes.report("attaching probes")
        until = time.monotonic() + 10
        while stream.getvalue().count("attaching probes") < 3 and time.monotonic() < until:
            time.sleep(0.01)
    assert not failures and stream.getvalue().count("attaching probes") >= 3
    assert any("the thread 'start notes'" in warning for warning in user_warnings.read())


def test_an_error_removes_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Stream(True))
    with pytest.raises(ValueError, match="x"), StartNotes():
        raise ValueError("x")
    assert stream.getvalue().endswith("\r\x1b[K")


def test_a_closed_stderr_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Stream(False))
    with StartNotes() as notes:
        stream.close()
        notes.warn("A sentence.")
        notes.ready()


def test_process_seconds() -> None:
    first = process_seconds()
    assert 0 < first <= process_seconds() < 1e6
