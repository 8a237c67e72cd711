# SPDX-License-Identifier: Apache-2.0
"""While a capture is read, a terminal has one line that says how much was read; notes stand above it, in lines of their own."""

from __future__ import annotations

import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import captures
from tests.support.pseudo_terminal import PseudoTerminal, screen
from tests.support.waiting import until
from tracer.analysis.collector import PacketCollector
from tracer.capture.replay import runner
from tracer.capture.replay.capture_reader import CaptureReader

NOTE = "a finding with a cause that is a long sentence, so that a narrow terminal needs more than one line for all of it"
NARROW = 40


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[PseudoTerminal]:
    opened = PseudoTerminal()
    termios.tcsetwinsize(opened.fd, (24, NARROW))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(runner, "LINE_SECONDS", 0)
    yield opened
    opened.close()


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CaptureReader]:
    monkeypatch.setattr("tracer.pipeline.live_source.POLL_SECONDS", 0.001)
    path = captures.capture(tmp_path / "a.k8st", captures.some_batches(20)).path
    with CaptureReader(str(path)) as reader:
        yield reader


def test_notes_do_not_mix_with_the_line(
    terminal: PseudoTerminal, capture: CaptureReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    total = sum(events for _, _, events in capture.spans())
    output = PacketCollector(lambda packet: None)
    with runner.bar(capture, "reading a.k8st", [output]) as progress:
        progress(total // 2)
        until(lambda: "reading a.k8st: " in terminal.text)
        output.note(NOTE)
        progress(total - total // 2)
        until(lambda: "100 %, 0 s left" in terminal.text)
    output.note("the end")
    until(lambda: "the end" in terminal.text)
    lines = [line for line in screen(terminal.text) if line]
    assert " ".join(line.strip() for line in lines) == f"{NOTE} the end" and all(len(line) <= NARROW for line in lines)


def test_a_pipe_gets_no_line(capture: CaptureReader, capsys: pytest.CaptureFixture[str]) -> None:
    with runner.bar(capture, "reading a.k8st", []) as progress:
        progress(1)
    assert capsys.readouterr() == ("", "")


def test_a_capture_with_more_events_than_its_index_says() -> None:
    said = [runner._format_share(read, 10, 2.0) for read in (0, 5, 10, 11)]
    assert said == ["0 events", "50 %, 2 s left", "100 %, 0 s left", "11 events"]
